#!/usr/bin/env bash
# Records what bench/results has about the host, with one build, alone on the machine. Then: tools/report.
#
#     bench/host_record.sh PROGRAM FOLDER [PART ...]
#
# PROGRAM is flashomp, FOLDER bench/results. Parts, all in this order unless named:
#     memory        resident memory up to N = 65536            host-memory.json        minutes
#     instructions  cachegrind on the AVX2 kernels             host-instructions.json  minutes
#     isas          instruction sets beside loops of products  host-isas.json          a minute
#     scaling       1, 2, 4, ... threads beside PyTorch        host-scaling.json       minutes
#     pytorch       the grid of bench/shapes/host.txt          host-pytorch.json       an hour
#     cache         decoding, bench/shapes/cache.txt           host-cache.json         eight minutes
# And, only where it is named:
#     avx2          both sides kept to AVX2, 12 shapes         host-pytorch-avx2.json  ten minutes
#     python        attention as a Python user calls it        host-python.json        eight minutes
# Only isas, scaling, pytorch, cache, avx2 and python depend on what else the machine does. PYTHON is one with PyTorch, and for python with
# Transformers; THREADS are those of isas, pytorch, cache, avx2 and python. python needs the package beside PROGRAM (FLASHOMP_BUILD_PYTHON).
# On another machine SUFFIX=-16 makes host-scaling-16.json, and the like of cache's: a table has all of them. RESUME=1 keeps the rows of
# pytorch, avx2 and python that are there, which have to be the same build's.
set -euo pipefail

if (($# < 2)); then
    sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0" >&2
    exit 2
fi
program=$1 folder=$2
shift 2
parts=("$@")
((${#parts[@]})) || parts=(memory instructions isas scaling pytorch cache)
here=$(dirname "$0")
python=${PYTHON:-python3}
threads=${THREADS:-$(nproc)}
export PYTHONDONTWRITEBYTECODE=1
export FLASHOMP_TUNING=${FLASHOMP_TUNING:-shipped} # no table of whoever records

for part in "${parts[@]}"; do
    printf '\n== %s, load %s\n' "$part" "$(cut -d' ' -f1-3 /proc/loadavg)"
    case $part in
    memory) "$python" "$here/host_memory.py" --bench "$program" --out "$folder/host-memory.json" ;;
    instructions) "$python" "$here/host_instructions.py" --bench "$program" --out "$folder/host-instructions.json" ;;
    isas) "$python" "$here/host_isas.py" --bench "$program" --out "$folder/host-isas.json" --threads "$threads" ;;
    scaling) "$python" "$here/host_scaling.py" --bench "$program" --out "$folder/host-scaling${SUFFIX:-}.json" ;;
    pytorch)
        "$python" "$here/compare_pytorch.py" --bench "$program" --out "$folder/host-pytorch.json" --cpu \
            --threads "$threads" --beside-standard --dtype float32 bfloat16 --kernels flash math --repetitions 7 \
            --min-time 0.02 --shapes "$here/shapes/host.txt" ${RESUME:+--resume}
        ;;
    cache)
        "$python" "$here/host_cache.py" --bench "$program" --out "$folder/host-cache${SUFFIX:-}.json" --threads "$threads"
        ;;
    avx2)
        "$python" "$here/compare_pytorch.py" --bench "$program" --out "$folder/host-pytorch-avx2.json" --cpu --isa avx2 \
            --threads "$threads" --dtype float32 --kernels flash --repetitions 7 --min-time 0.02 \
            --shapes "$here/shapes/host_avx2.txt" ${RESUME:+--resume}
        ;;
    python)
        PYTHONPATH=$(dirname "$program")/../python${PYTHONPATH:+:$PYTHONPATH} "$python" "$here/compare_python.py" \
            --out "$folder/host-python.json" --threads "$threads" ${RESUME:+--resume}
        ;;
    *)
        printf "host_record.sh: '%s' is no part; allowed are memory, instructions, isas, scaling, pytorch, cache, avx2, python.\n" "$part" >&2
        exit 2
        ;;
    esac
done
