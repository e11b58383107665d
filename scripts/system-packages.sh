#!/usr/bin/env bash
# Installs Debian packages that some tests drive (a browser, a database server), where that is possible.
# Where it is not, it says so; the tests that need them are then left out and say so too.
set -u
declare -A program=([chromium]=chromium [postgresql]=/usr/lib/postgresql/*/bin/postgres)
missing=()
for package in "$@"; do
  # Unquoted on purpose: PostgreSQL's server lies in a folder that carries its version.
  command -v ${program[$package]:-$package} >/dev/null 2>&1 || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0
if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null 2>&1; then
  echo "installing ${missing[*]} with apt-get"
  (apt-get install -y --no-install-recommends "${missing[@]}" || { apt-get update && apt-get install -y --no-install-recommends "${missing[@]}"; }) >/dev/null 2>&1 && exit 0
fi
echo "not installed and not installable here: ${missing[*]} (tests that need them will be left out)"
[ -z "${CALIBRANT_REQUIRE_ALL:-}" ]
