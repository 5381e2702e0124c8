#!/bin/sh
# Runs kernels on all of a space, on a GPU: benchmarks/exhaust.sh [KERNEL SPACE DTYPE]...; without arguments the list below.
# A result is benchmarks/results/exhaust/KERNEL-SPACE-DTYPE.json, which a run that was interrupted goes on from.
# The exit status is the worst of all: 1 findings, 3 not finished.
set -u
cd "$(dirname "$0")/.." || exit 2
[ $# -gt 0 ] || set -- \
    layernorm_fwd rows2 bf16  layernorm_fwd rows2 fp16  layernorm_fwd rows4 bf16  layernorm_fwd rows4_e5m2 fp16 \
    layernorm_bwd rows2 bf16  rmsnorm_fwd rows2 bf16  rmsnorm_bwd rows2 bf16  add_rmsnorm_fwd rows2 bf16 \
    rmsnorm_fwd_e4m3fn rows2 bf16  groupnorm_silu_fwd rows2 bf16 \
    batchnorm_fwd x bf16  batchnorm_fwd x fp16  layernorm_fwd eps fp32
mkdir -p benchmarks/results/exhaust
worst=0
while [ $# -ge 3 ]; do
    file="benchmarks/results/exhaust/$1-$2-$3.json"
    "${VERIFY_NORM:-verify-norm}" exhaust --kernel "$1" --space "$2" --dtype "$3" --resume "$file"
    status=$?
    if [ $status -eq 1 ] || [ $worst -eq 0 ]; then worst=$status; fi
    shift 3
done
exit $worst
