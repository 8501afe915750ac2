set -u
export LD_LIBRARY_PATH=$PWD/.carry/lib:/usr/local/nvidia/lib64 OMP_TARGET_OFFLOAD=MANDATORY
B=.carry/bin
for t in float32 bfloat16 float16; do timeout 60 $B/flashomp check tests/cases --dtype $t --require-device > $OUT/check_$t.txt 2>&1; echo rc $?; tail -1 $OUT/check_$t.txt; grep -E 'FAIL|skip' $OUT/check_$t.txt | head -5; done
timeout 240 $B/flashomp_test_parity --gtest_filter='*plain_on_device*' --gtest_brief=1 > $OUT/parity.txt 2>&1; echo rc $?; tail -15 $OUT/parity.txt
timeout 100 $B/flashomp_test_property --gtest_filter='*plain_on_device*' --gtest_brief=1 > $OUT/property.txt 2>&1; echo rc $?; tail -15 $OUT/property.txt
run() { timeout 40 $B/flashomp_bench --device gpu --shapes bench/shapes/gpu_plain.txt "$@" --benchmark_min_time=0.05 2>&1 | grep -E 'ward/|rror' | grep -v libgomp | grep -oE '^[a-z]+/[a-z0-9_/]+|[0-9.]+ ms |TFLOP/s=[^ ]*|ERROR.*' | tr '\n' ' ' | sed 's/forward/\nforward/g; s/backward/\nbackward/g'; echo; }
run
