set -u
export OMP_TARGET_OFFLOAD=MANDATORY
B=.carry/bin
run() { timeout 30 $B/flashomp_bench --device gpu --shapes bench/shapes/gpu_quick.txt "$@" --benchmark_min_time=0.05 2>&1 | grep -E 'ward/|rror' | grep -v libgomp | grep -oE '^[a-z]+|[0-9.]+ ms |TFLOP/s=[^ ]*|ERROR.*' | tr '\n' ' ' | cut -c1-200; echo " :: $*"; }
export LD_LIBRARY_PATH=.carry/lib:/usr/local/nvidia/lib64
timeout 100 $B/flashomp_test_parity --gtest_filter='*plain_on_device*' --gtest_brief=1 2>&1 | tail -4
for w in 1 2 4 8; do
for blk in 32,16 32,32 48,32 64,16 16,64; do run --direction forward --blocks $blk --team-threads $w --teams $((1056/w)); done; done
run --direction forward --blocks 48,32 --team-threads 4 --teams 528
run --direction forward --blocks 48,32 --team-threads 4 --teams 256
run --direction forward --blocks 64,64 --team-threads 4 --global-memory
run --direction forward --blocks 64,64 --team-threads 8 --teams 132 --global-memory
run --direction forward --blocks 128,64 --team-threads 8 --teams 132 --global-memory
for blk in 32,16 32,32 16,32 48,16; do run --direction backward --blocks $blk --team-threads 4 --teams 256; run --direction backward --blocks $blk --team-threads 2 --teams 512; done
