# Shared by the scripts of this folder: which compose there is, and which images to use.

compose() {
  if docker compose version >/dev/null 2>&1; then
    docker compose -p duolog -f cluster/docker-compose.yml "$@"
  else
    docker-compose -p duolog -f cluster/docker-compose.yml "$@"
  fi
}

need_engine() {
  command -v docker >/dev/null || { echo "missing: docker (apt-get install docker.io docker-compose)" >&2; exit 1; }
  docker version >/dev/null 2>&1 || { echo "no Docker engine answers: start dockerd" >&2; exit 1; }
  docker compose version >/dev/null 2>&1 || command -v docker-compose >/dev/null || {
    echo "missing: docker compose, or docker-compose" >&2; exit 1; }
}

# Images out of Debian's packages where they were made (cluster/base-image) or must be, as no image
# registry is reachable.
choose_images() {
  [ -z "${DUOLOG_BASE_IMAGE:-}${DUOLOG_ETCD_IMAGE:-}" ] || return 0
  if ! docker image inspect duolog-etcd:bookworm >/dev/null 2>&1; then
    timeout 60 docker pull -q quay.io/coreos/etcd:v3.5.17 >/dev/null 2>&1 \
      && timeout 120 docker pull -q python:3.12-slim-bookworm >/dev/null 2>&1 && return 0
    echo "no image registry is reachable: the images are made of Debian's packages"
    cluster/base-image
  fi
  export DUOLOG_BASE_IMAGE=duolog-base:bookworm DUOLOG_ETCD_IMAGE=duolog-etcd:bookworm
}
