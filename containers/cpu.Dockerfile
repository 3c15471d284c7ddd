# The CPU image: Ratchet's dependencies, not its code, from a wheelhouse and without a network. For CI and laptops.
# The context is made by containers/build.py: wheels/ (with requirements.txt), installer/ (pip's wheel), install.sh.
ARG BASE_IMAGE=python:3.11-slim-bookworm
FROM ${BASE_IMAGE} AS install
LABEL ratchet.stage=install
COPY installer /build/installer
COPY wheels /build/wheels
COPY install.sh /build/
RUN sh /build/install.sh /build /opt/ratchet

# A second stage, since the first has pip and every wheel a second time. No RUN from here on: it is what it copies.
FROM ${BASE_IMAGE}
COPY --from=install /opt/ratchet /opt/ratchet
# A caller's uid has no entry in /etc/passwd and no home: torch asks for both.
ENV PATH=/opt/ratchet/bin:${PATH} HOME=/tmp USER=ratchet LOGNAME=ratchet
USER 10001:10001
CMD ["python3"]
