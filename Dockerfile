# The recorder, without root. Sessions and compiled kernels are in the volume /data.
#
#     docker build --tag tape2048 .
#     docker run --rm --volume selfplay:/data tape2048 record --max-games 100
#     docker run --rm --volume selfplay:/data tape2048 list
FROM python:3.13-slim AS build
COPY . /src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels /src

FROM python:3.13-slim
COPY requirements.lock /tmp/requirements.lock
COPY --from=build /wheels /wheels
RUN grep -E '# .*\b(runtime|metrics|s3)\b' /tmp/requirements.lock > /tmp/wanted.txt \
    && pip install --no-cache-dir --require-hashes --requirement /tmp/wanted.txt \
    && pip install --no-cache-dir --no-deps /wheels/*.whl \
    && rm -rf /wheels /tmp/*.txt /tmp/requirements.lock \
    && useradd --uid 2048 --create-home tape2048 \
    && install --directory --owner tape2048 --group tape2048 /data
USER 2048
WORKDIR /data
VOLUME /data
ENV XDG_CACHE_HOME=/data/.cache
# It drains the games in play after SIGTERM: docker stop --time 90.
ENTRYPOINT ["tape2048"]
CMD ["record"]
