set -u
export LD_LIBRARY_PATH=$PWD/.carry/lib:/usr/local/nvidia/lib64 OMP_TARGET_OFFLOAD=MANDATORY
B=.carry/bin
args="--device gpu --shapes bench/shapes/gpu_profile.txt --direction forward --benchmark_min_time=0.001"
prof() { name=$1; shift; timeout 120 ncu --clock-control none -k regex:run_pass -c 1 --set full --import-source no -f -o /tmp/$name $B/flashomp_bench $args "$@" > $OUT/$name.log 2>&1; ncu -i /tmp/$name.ncu-rep --page details > $OUT/$name.details.txt 2>&1; ncu -i /tmp/$name.ncu-rep --page source --csv > /tmp/$name.csv 2>$OUT/$name.err
python3 - /tmp/$name.csv <<'P' > $OUT/$name.hot.txt
import csv,sys
rows=list(csv.reader(open(sys.argv[1])))
h=rows[0]; print(h[:12])
si=[i for i,c in enumerate(h) if 'Warp Stall Sampling (All' in c or c=='# Samples' or 'Sampl' in c][0]
src=[i for i,c in enumerate(h) if c=='Source'][0]
ex=[i for i,c in enumerate(h) if 'Instructions Executed' in c][0]
data=[]
for n,r in enumerate(rows[1:]):
    try: data.append((n,float(r[si] or 0),r[src],float(r[ex] or 0)))
    except Exception: pass
tot=sum(d[1] for d in data) or 1
print('total samples',tot,'total inst',sum(d[3] for d in data))
for n,s,t,e in data:
    if s/tot>0.001: print(n,'%.2f%%'%(100*s/tot),int(e),t[:90])
P
}
prof a --blocks 64,16 --team-threads 1 --teams 1024
prof b --blocks 64,16 --team-threads 4
grep -E 'Duration|Registers Per|Theoretical Occ|Achieved Occ|Executed Ipc|Issued Warp|L1/TEX Hit|Local|Bank conf|bank conf|Stall' $OUT/*.details.txt | head -60
