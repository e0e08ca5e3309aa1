# syntax=docker/dockerfile:1
# docker build -t kvgauge . && docker run --rm -v "$PWD:/work" kvgauge check
FROM rust:1.95-slim-bookworm AS build
RUN apt-get update && apt-get install -y --no-install-recommends build-essential && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
RUN cargo build --locked --release && install -m 755 target/release/kvgauge /usr/local/bin/kvgauge

# Root certificates are inside the binary; `pip` is what fetches the default model.
FROM debian:bookworm-slim
RUN apt-get update && apt-get install -y --no-install-recommends python3 python3-pip && rm -rf /var/lib/apt/lists/*
COPY --from=build /usr/local/bin/kvgauge /usr/local/bin/kvgauge
RUN useradd --create-home kvgauge
USER kvgauge
WORKDIR /work
ENTRYPOINT ["kvgauge"]
