set -u
export LD_LIBRARY_PATH=$PWD/.carry/lib:/usr/local/nvidia/lib64 OMP_TARGET_OFFLOAD=MANDATORY
B=.carry/bin
timeout 60 $B/flashomp info
for t in float32 bfloat16 float16; do timeout 60 $B/flashomp check tests/cases --dtype $t --require-device > $OUT/check_$t.txt 2>&1; echo rc $?; tail -3 $OUT/check_$t.txt; grep -E 'FAIL' $OUT/check_$t.txt | head -5; done
timeout 240 $B/flashomp_test_parity --gtest_filter='*plain_on_device*' --gtest_brief=1 > $OUT/parity.txt 2>&1; echo rc $?; tail -15 $OUT/parity.txt
run() { timeout 40 $B/flashomp_bench --device gpu --shapes bench/shapes/gpu_quick.txt "$@" --benchmark_min_time=0.05 2>&1 | grep -E 'ward/|rror' | grep -v libgomp | cut -c1-230; }
echo base; run
for blk in 32,32 64,32 64,16 32,64 32,16 48,32; do for w in 2 4; do echo $blk w$w; run --direction forward --blocks $blk --team-threads $w; done; done
echo global; run --direction forward --blocks 64,32 --team-threads 4 --global-memory
run --direction forward --blocks 64,64 --team-threads 4 --global-memory
