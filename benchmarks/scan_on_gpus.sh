#!/usr/bin/env bash
# The scan benchmark on a machine with GPUs: a full grid of at least 300 settings x 12 sizes, the same by race, the two
# settings that these choose again in launches of their own, the default grid twice, nccl-tests on 11 settings, and what
# scan_speed.py makes of them. Every run is packed as soon as it ends, so that a time limit costs the step in flight only.
#
#   benchmarks/scan_on_gpus.sh OUT [all_reduce_perf or its folder]     about 12 minutes on 2x H200
#   STEPS="full race" benchmarks/scan_on_gpus.sh OUT                   some of them; what is there already is kept
#   TOKENS=1,2 GRID="--proto LL,Simple" STEPS="full race duel" ...      something small, to try the script
set -uo pipefail
OUT=${1:?folder for the runs}; PERF=${2:-}
STEPS=${STEPS:-full race duel p2p again shm nt score}; DUELS=${DUELS:-8}
PYTHON=${PYTHON:-python3}
mkdir -p "$OUT"
TOKENS=${TOKENS:-1-4,6,8,12,16,32,64,128,512}
GRID=${GRID:---proto LL,LL128,Simple --algo Ring,Tree --channels default,1,2,4,8,16,32 --buffsize default,1M,16M --nthreads default,128,256}
scan() {
  local name=$1; shift
  [ -e "$OUT/$name" ] && { echo "$name is there already"; return; }
  "$PYTHON" -m nccltune scan --model kimi-k2.5 -o "$OUT/$name" "$@" >"$OUT/$name.txt" 2>"$OUT/$name.err"
  echo "$name: exit $?; $(tail -1 "$OUT/$name.err")"
  tar -C "$OUT" -czf "$OUT/$name.tar.gz" "$name"
}
for step in $STEPS; do
  case $step in
    full) scan full --tokens $TOKENS $GRID --no-beside --no-confirm ;;
    race) scan race --tokens $TOKENS $GRID --no-beside --no-confirm --search race ;;
    duel)
      settings=()
      while read -r line; do settings+=(--setting "$line"); done < <("$PYTHON" "$(dirname "$0")/scan_speed.py" "$OUT/full" --race "$OUT/race" --print-duel)
      for n in $(seq "$DUELS"); do
        scan "duel$n" --tokens $TOKENS "${settings[@]}" --no-dedup --seed "$n" --no-beside --no-confirm
      done ;;
    p2p) scan p2p --tokens $TOKENS --timing in-forward,back-to-back ;;
    again) scan again --tokens $TOKENS --timing in-forward,back-to-back --no-beside ;;
    shm) scan shm --tokens $TOKENS --timing in-forward,back-to-back --base-set NCCL_P2P_DISABLE=1 --no-beside ;;
    nt)
      settings=()
      for pair in LL,Ring LL,Tree LL128,Ring LL128,Tree Simple,Ring Simple,Tree; do
        settings+=(--setting "NCCL_PROTO=${pair%,*};NCCL_ALGO=${pair#*,}")
      done
      for channels in 1 8; do
        settings+=(--setting "NCCL_PROTO=LL;NCCL_ALGO=Ring;NCCL_MIN_NCHANNELS=$channels;NCCL_MAX_NCHANNELS=$channels")
      done
      settings+=(--setting "NCCL_PROTO=Simple;NCCL_ALGO=Ring;NCCL_MIN_NCHANNELS=8;NCCL_MAX_NCHANNELS=8" --setting seed)
      scan nt --tokens 1,2,4,8,16,32,64,128,256,512 --backend nccl-tests ${PERF:+--nccl-tests "$PERF"} "${settings[@]}" ;;
    score)
      duels=("$OUT"/duel[0-9])
      [ -d "${duels[0]}" ] && duels=(--duel "${duels[@]}") || duels=()
      "$PYTHON" "$(dirname "$0")/scan_speed.py" "$OUT/full" --race "$OUT/race" "${duels[@]}" --again "$OUT/p2p" "$OUT/again" --own "$OUT/p2p" \
        --nccl-tests "$OUT/nt" | tee "$OUT/score.txt" ;;
    *) echo "no step is called '$step'" >&2; exit 2 ;;
  esac
done
