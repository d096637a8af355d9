# The command `stablenet` in an image built from the wheel. Data come in as a volume, runs go out as one:
#
#   docker build -t stablenet .
#   docker run --rm -v "$PWD/data:/data:ro" -v "$PWD/out:/work" stablenet diagnose /data -o page.html
#
# PIP_ARGS: further arguments of pip, for example the address of an index with CPU builds of torch.
ARG PYTHON=3.12

FROM python:${PYTHON}-slim AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE CHANGELOG.md CITATION.cff ./
COPY src ./src
RUN pip install --no-cache-dir build && python -m build --wheel --outdir /dist .

FROM python:${PYTHON}-slim
ARG PIP_ARGS=""
ARG EXTRAS="plots,timm,tensorboard"
COPY --from=build /dist/*.whl /tmp/
RUN pip install --no-cache-dir ${PIP_ARGS} "$(ls /tmp/stablenet-*.whl)[${EXTRAS}]" && rm /tmp/*.whl
RUN useradd --create-home --uid 1000 user && mkdir /work && chown user /work
USER user
WORKDIR /work
ENV STABLENET_DATA=/data MPLCONFIGDIR=/tmp/matplotlib
ENTRYPOINT ["stablenet"]
CMD ["--help"]
