#!/usr/bin/env bash
# The engine on this machine's GPU, checked and measured, in under 8 minutes: see gpu_check.py.
# Needs Python with torch and transformers, and no network. PYTHON names another interpreter.
set -euo pipefail
cd "$(dirname "$0")/.."
export PYTHONPATH="server:." PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
exec "${PYTHON:-python3}" benchmarks/gpu_check.py "$@"
