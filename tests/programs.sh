#!/bin/sh
# The programs that some tests need. Root on Debian: installed. Elsewhere: told, and those tests skip.
missing=""
for program in prometheus chromium docker-compose g++; do
    command -v "$program" >/dev/null 2>&1 || missing="$missing $program"
done
[ -z "$missing" ] && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "installing$missing with apt-get"
    apt-get update -qq >/dev/null
    for program in $missing; do
        # docker-compose recommends an engine, which no test needs.
        lean=""; [ "$program" = docker-compose ] && lean=--no-install-recommends
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $lean "$program" >/dev/null
    done
else
    echo "without$missing, the tests that need it are left out (Debian: apt-get install$missing)"
fi
