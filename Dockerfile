# Folio server image.
#
#   docker build -t registry.example/folio:0.1.0 .                                                          CPU
#   docker build -t registry.example/folio:0.1.0-cuda --build-arg CUDA=1 \
#     --build-arg CUDA_KEYRING_URL=... --build-arg CUDA_KEYRING_SHA256=... .                                CPU and NVIDIA
#
#   BASE                 Debian 12, for both stages: a binary linked against one distribution's gRPC and Abseil does not
#                        start on another's. A digest makes the build repeatable.
#   CUDA                 1 compiles the CUDA backend in (FOLIO_CUDA). The node's driver must be R580 or newer.
#   CUDA_KEYRING_URL     where NVIDIA's cuda-keyring package for Debian 12 lies (it adds their package repository). Not
#   CUDA_KEYRING_SHA256  needed when BASE already has the toolkit in /usr/local/cuda.
#   VERSION, REVISION    for the labels.
ARG BASE=debian:12-slim

FROM ${BASE} AS build
ARG CUDA=0
ARG CUDA_KEYRING_URL=
ARG CUDA_KEYRING_SHA256=
ENV DEBIAN_FRONTEND=noninteractive
WORKDIR /src

# What only the package list decides comes first, so that a change of the code does not download it again; and before
# NVIDIA's repository is added, because a source package is fetched, which that repository has none of.
COPY dev ./
COPY cmake/fetching.sh cmake/fetch_sentencepiece.sh cmake/fetch_xgrammar.sh cmake/
RUN ./dev install

# hadolint ignore=DL3008
RUN set -eu; \
    if [ "${CUDA}" != 1 ] || [ -x /usr/local/cuda/bin/nvcc ]; then exit 0; fi; \
    if [ -z "${CUDA_KEYRING_URL}" ] || [ -z "${CUDA_KEYRING_SHA256}" ]; then \
      echo "CUDA=1 needs a BASE with /usr/local/cuda, or CUDA_KEYRING_URL and CUDA_KEYRING_SHA256" >&2; exit 1; \
    fi; \
    apt-get update; \
    apt-get install -y --no-install-recommends ca-certificates curl; \
    curl -fsSL -o /tmp/cuda-keyring.deb "${CUDA_KEYRING_URL}"; \
    echo "${CUDA_KEYRING_SHA256}  /tmp/cuda-keyring.deb" > /tmp/cuda-keyring.sha256; \
    sha256sum --check --strict /tmp/cuda-keyring.sha256; \
    dpkg -i /tmp/cuda-keyring.deb; \
    apt-get update; \
    apt-get install -y --no-install-recommends cuda-nvcc-13-0 cuda-cudart-dev-13-0 libcublas-dev-13-0

COPY . .
# The first cmake sets what ./dev leaves as it finds it: the architectures of ./dev cuda. cuBLASLt, which the server loads when
# it opens a GPU, is copied under its soname: the runtime stage then needs no repository of NVIDIA's.
RUN set -eu; \
    export PATH="/usr/local/cuda/bin:${PATH}"; \
    cmake -S . -B build/release -G Ninja -DFOLIO_CUDA="${CUDA}" \
      -DCMAKE_CUDA_ARCHITECTURES="80-real;90-real;100-real;100-virtual"; \
    ./dev build; \
    mkdir -p /out/bin /out/lib; \
    strip --strip-debug -o /out/bin/folio-server build/release/bin/folio-server; \
    strip --strip-debug -o /out/bin/folio-grammar-trial build/release/bin/folio-grammar-trial; \
    strip --strip-debug -o /out/bin/folio build/release/bin/folio; \
    if [ "${CUDA}" = 1 ]; then \
      cp -L /usr/local/cuda/lib64/libcublasLt.so.13 /out/lib/; \
    fi

FROM ${BASE} AS runtime
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="folio" \
      org.opencontainers.image.description="Inference server for documents far longer than the model's trained window" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"

# Versions are Debian 12's own and only move for fixes. The list of what went in stays in the image.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends \
       libabsl20220623 \
       libgrpc++1.51 \
       libmicrohttpd12 \
       libpcre2-8-0 \
       libprometheus-cpp-core1.0 \
       libprotobuf32 \
       libspdlog1.10 \
       libssl3 \
       libutf8proc2 \
    && rm -rf /var/lib/apt/lists/* \
    && mkdir -p /usr/local/share/folio \
    && dpkg-query -W > /usr/local/share/folio/packages.txt

COPY --from=build /out/bin/ /usr/local/bin/
COPY --from=build /out/lib/ /usr/local/lib/folio/
COPY models/folio-tiny/ /models/folio-tiny/

# A library that is missing from the package list fails the build here, and not the pod at its start.
RUN echo /usr/local/lib/folio > /etc/ld.so.conf.d/folio.conf \
    && ldconfig \
    && ldd /usr/local/bin/folio-server /usr/local/bin/folio-grammar-trial /usr/local/bin/folio > /tmp/libraries \
    && ! grep 'not found' /tmp/libraries \
    && rm /tmp/libraries

# What the NVIDIA container runtime mounts, where there is one. Which devices is the scheduler's business, so
# NVIDIA_VISIBLE_DEVICES is not set.
ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility

USER 10001:10001
EXPOSE 50051 9090
STOPSIGNAL SIGTERM
# Health is the gRPC health protocol on 50051; orchestrators ask it themselves.
HEALTHCHECK NONE
# Exec form: the server is process 1 and receives SIGTERM itself.
ENTRYPOINT ["/usr/local/bin/folio-server"]
# Without arguments a demonstration: the ports are those of the container, and whoever publishes them lets everybody in.
CMD ["--model=/models/folio-tiny", "--insecure", "--listen=0.0.0.0:50051", "--metrics-listen=0.0.0.0:9090"]
