# fedvra on the CPU: docker build -t fedvra . && docker run --rm -v "$PWD/runs:/srv/runs" fedvra demo
FROM python:3.11-slim

COPY . /src
RUN pip install --no-cache-dir -c /src/constraints.txt /src \
    && rm -rf /src \
    && useradd --create-home --uid 1000 fedvra \
    && install -d -o fedvra /srv

USER 1000
WORKDIR /srv
ENV FEDVRA_DATA=/srv/data
ENTRYPOINT ["fedvra"]
CMD ["--help"]
