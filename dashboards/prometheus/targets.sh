#!/bin/sh
# PRONY_TARGETS goes in, Prometheus's list of targets comes out on stdout.
#   PRONY_TARGETS="vllm=host.docker.internal:8001,sglang=10.0.0.7:30000"
# What stands before = is the job, which the rules of `prony rules` select; without one: targets.
set -eu
separator=""
printf '['
for each in $(printf '%s' "${PRONY_TARGETS:-}" | tr ',' ' '); do
    job=targets
    case $each in *=*) job=${each%%=*} ;; esac
    printf '%s{"targets": ["%s"], "labels": {"job": "%s"}}' "$separator" "${each#*=}" "$job"
    separator=", "
done
printf ']\n'
