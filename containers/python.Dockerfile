# A base image that lacks Python 3.11 or newer, with it. The one step that needs a network, so it is an image of its own:
# containers/build.py makes it when BASE_IMAGE has no python3, and images.lock names it by its id.
ARG BASE_IMAGE
FROM ${BASE_IMAGE}
ARG PACKAGES=python3
USER root
RUN apt-get update && \
    DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends ${PACKAGES} && \
    rm -rf /var/lib/apt/lists/*
