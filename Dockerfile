# fedvra on the CPU: docker build -t fedvra . && docker run --rm -v "$PWD/runs:/srv/runs" fedvra demo
FROM python:3.11-slim

# for a federation: --build-arg EXTRAS="[flower]", as examples/deploy/compose.yaml has it
ARG EXTRAS=""
# pip's usual torch brings gigabytes of CUDA libraries: pass the index of PyTorch's CPU builds to do without
ARG PIP_EXTRA_INDEX_URL=""
COPY . /src
RUN pip install --no-cache-dir -c /src/constraints.txt "/src$EXTRAS" \
    && rm -rf /src \
    && useradd --create-home --uid 1000 fedvra \
    && install -d -o fedvra /srv /srv/state

USER 1000
WORKDIR /srv
ENV FEDVRA_DATA=/srv/data
ENTRYPOINT ["fedvra"]
CMD ["--help"]
