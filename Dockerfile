# The recorder, without root. Sessions and compiled kernels are in the volume /data.
#
#     docker build --tag tape2048 .
#     docker run --rm --volume selfplay:/data tape2048 record --max-games 100
#     docker run --rm --volume selfplay:/data tape2048 list
FROM python:3.13-slim AS build
COPY . /src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels /src

FROM python:3.13-slim
COPY constraints.txt /tmp/constraints.txt
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir --constraint /tmp/constraints.txt "$(echo /wheels/*.whl)[metrics,s3]" \
    && rm -rf /wheels /tmp/constraints.txt \
    && useradd --uid 2048 --create-home tape2048 \
    && install --directory --owner tape2048 --group tape2048 /data
USER 2048
WORKDIR /data
VOLUME /data
ENV XDG_CACHE_HOME=/data/.cache
# It drains the games in play after SIGTERM: docker stop --time 90.
ENTRYPOINT ["tape2048"]
CMD ["record"]
