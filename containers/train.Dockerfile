# The CUDA image: as cpu.Dockerfile on a CUDA runtime. `base` holds cudart alone: the maths libraries (cuBLAS, cuDNN,
# NCCL: 2 GB) come as wheels that torch pins, and would be there twice on `runtime`.
# The context is made by containers/build.py: wheels/ (with requirements.txt), installer/ (pip's wheel), install.sh.
ARG BASE_IMAGE=nvidia/cuda:13.0.2-base-ubuntu24.04
FROM ${BASE_IMAGE} AS install
LABEL ratchet.stage=install
COPY installer /build/installer
COPY wheels /build/wheels
COPY install.sh /build/
RUN sh /build/install.sh /build /opt/ratchet

FROM ${BASE_IMAGE}
COPY --from=install /opt/ratchet /opt/ratchet
ENV PATH=/opt/ratchet/bin:${PATH} HOME=/tmp USER=ratchet LOGNAME=ratchet
# What the engine's GPU toolkit mounts from the host: the driver's libraries, and nothing for displays.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 10001:10001
CMD ["python3"]
