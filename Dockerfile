# The server in a container:
#
#     docker build -t dwell .
#     docker run -v dwell:/data -v ./tokens.toml:/etc/dwell/tokens.toml:ro \
#         -e DWELL_TOKEN_FILE=/etc/dwell/tokens.toml -p 8410:8410 dwell
#
# Who calls it by a name needs that name in DWELL_ALLOWED_HOSTS.
# Other containers reach it, so it does not start without a token file, unless DWELL_INSECURE=true.
FROM python:3.11.13-slim-bookworm

COPY pyproject.toml README.md LICENSE /src/
COPY src /src/src
RUN pip install --no-cache-dir '/src[cli,server]' && rm -r /src

RUN useradd --system --uid 8410 --no-create-home dwell \
    && install --directory --owner dwell --mode 0700 /data
USER dwell
WORKDIR /data
VOLUME /data

ENV DWELL_STORE=/data/store \
    DWELL_HTTP=0.0.0.0:8410 \
    DWELL_BEANSTALK=0.0.0.0:11300 \
    DWELL_LOG_FORMAT=json
EXPOSE 8410 11300

STOPSIGNAL SIGTERM
ENTRYPOINT ["dwell"]
CMD ["serve"]
