# fedvra on the CPU: docker build -t fedvra . && docker run --rm -v "$PWD/runs:/work/runs" fedvra demo
FROM python:3.12-slim

COPY . /src
RUN pip install --no-cache-dir -c /src/constraints.txt /src \
    && rm -rf /src \
    && useradd --create-home --uid 1000 fedvra \
    && install -d -o fedvra /work

USER fedvra
WORKDIR /work
ENV FEDVRA_DATA=/work/data
ENTRYPOINT ["fedvra"]
CMD ["--help"]
