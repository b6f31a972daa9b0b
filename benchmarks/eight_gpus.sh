#!/usr/bin/env bash
# Everything that a machine with eight GPUs is asked, in one script; with RANKS=4 or 2 the same on fewer. Steps run in order of
# worth, each is packed as it ends, and what is there already is kept: call it again after a time limit.
#
#   benchmarks/eight_gpus.sh OUT [all_reduce_perf or its folder]
#
#   doctor    this machine in one page
#   kimi      scan at the sizes of Kimi-K2.5, in-forward and back-to-back, over the full grid, the seed's set by name, and what the
#             engine could use instead of NCCL beside it
#   deepseek  the same at the sizes of DeepSeek-V3
#   shm       the sizes of Kimi-K2.5 with NCCL_P2P_DISABLE=1 in the base: the nearest an NVLink machine comes to one without
#   nt        nccl-tests on 20 settings
#   ranks     2 and 4 of the GPUs, at the same sizes: do they predict all of them?
#   model     configs of a MoE target with the layers and the hidden size of Kimi-K2.5, and as many experts as fit
#   servers   SGLang with these, custom all-reduce off and on, and without peer access (servers_on_gpus.sh)
#   score     what the finished runs say of each other
#
#   STEPS="doctor kimi"  some of them      RANKS=8   DRY=1  print plans and servers, measure nothing
set -uo pipefail
OUT=${1:?folder for the results}; PERF=${2:-}
RANKS=${RANKS:-8}
STEPS=${STEPS:-doctor kimi shm ranks model servers deepseek nt score}
PYTHON=${PYTHON:-python3}
export PYTHON
HERE=$(cd "$(dirname "$0")" && pwd)
TOKENS=${TOKENS:-1-16,32,64,128,512}
# 127 settings: two timings of 20 sizes are about 6 minutes on NVLink; --nthreads default,256 doubles it
GRID=${GRID:---proto LL,LL128,Simple --algo Ring,Tree --channels default,1,2,4,8,16,32 --buffsize default,1M,16M}
BOTH="--timing in-forward,back-to-back"
mkdir -p "$OUT"
failed=0
scan() {  # name, ranks, options
  local name=$1 ranks=$2 code; shift 2
  if [ -n "${DRY:-}" ]; then
    echo "== $name"; "$PYTHON" -m nccltune scan --ranks "$ranks" "$@" --dry-run || failed=1
    return
  fi
  local how=-o
  [ -e "$OUT/$name/manifest.json" ] && how=--resume  # with the same flags: how to measure is not all in the run
  "$PYTHON" -m nccltune scan "$how" "$OUT/$name" --ranks "$ranks" "$@" >"$OUT/$name.txt" 2>>"$OUT/$name.err"; code=$?
  echo "$name: exit $code; $(tail -1 "$OUT/$name.err")"
  # 3 is a finding (noise, or nothing worth emitting), not a broken step
  [ "$code" -eq 0 ] || [ "$code" -eq 3 ] || failed=1
  tar -C "$OUT" -czf "$OUT/$name.tar.gz" "$name"
}
settings_of_nt() {
  local pair channels
  for pair in LL,Ring LL,Tree LL128,Ring LL128,Tree Simple,Ring Simple,Tree; do
    printf -- '--setting\nNCCL_PROTO=%s;NCCL_ALGO=%s\n' "${pair%,*}" "${pair#*,}"
    for channels in 4 16; do
      printf -- '--setting\nNCCL_PROTO=%s;NCCL_ALGO=%s;NCCL_MIN_NCHANNELS=%d;NCCL_MAX_NCHANNELS=%d\n' "${pair%,*}" "${pair#*,}" $channels $channels
    done
  done
  printf -- '--setting\nNCCL_PROTO=LL;NCCL_ALGO=Ring;NCCL_NTHREADS=64\n--setting\nseed\n'
}
fewer=()
for n in 2 4; do [ "$n" -lt "$RANKS" ] && fewer+=("$n"); done
for step in $STEPS; do
  case $step in
    doctor) "$PYTHON" -m nccltune doctor --model kimi-k2.5 >"$OUT/doctor.txt" 2>&1; echo "doctor: exit $?" ;;
    kimi) scan kimi "$RANKS" --model kimi-k2.5 --tokens "$TOKENS" $GRID --setting seed $BOTH --beside ;;
    deepseek) scan deepseek "$RANKS" --model deepseek-v3 --tokens "$TOKENS" $GRID --setting seed $BOTH --beside ;;
    shm) scan shm "$RANKS" --model kimi-k2.5 --tokens "$TOKENS" --setting seed $GRID --timing in-forward --base-set NCCL_P2P_DISABLE=1 --no-beside ;;
    nt)
      mapfile -t settings < <(settings_of_nt)
      scan nt "$RANKS" --model kimi-k2.5 --tokens 1,4,16,64,512 --backend nccl-tests ${PERF:+--nccl-tests "$PERF"} "${settings[@]}"
      scan own "$RANKS" --model kimi-k2.5 --tokens 1,4,16,64,512 --timing back-to-back --no-beside --no-confirm "${settings[@]}" ;;
    ranks)
      for n in "${fewer[@]}"; do scan "ranks$n" "$n" --model kimi-k2.5 --tokens "$TOKENS" --no-beside --no-confirm --setting seed --proto LL,LL128,Simple --algo Ring,Tree; done ;;
    model) "$PYTHON" "$HERE/dummy_model.py" "$OUT/models" --gpus "$RANKS" ${EXPERTS:+--experts "$EXPERTS"} ${LAYERS:+--layers "$LAYERS"} || failed=1 ;;
    servers)
      P2P=${P2P:-$OUT/kimi} SHM=${SHM:-$OUT/shm} MODEL=$OUT/models/target TP=$RANKS BATCHES=${BATCHES:-1,8} STEPS="nccl custom shm" \
        "$HERE/servers_on_gpus.sh" "$OUT/servers" || failed=1 ;;
    score)
      [ -n "${DRY:-}" ] && continue
      if [ ${#fewer[@]} -gt 0 ]; then
        "$PYTHON" "$HERE/rank_extrapolation.py" "${fewer[@]/#/$OUT/ranks}" --target "$OUT/kimi" | tee "$OUT/ranks.txt"
      fi
      [ -e "$OUT/nt/manifest.json" ] && against=(--nccl-tests "$OUT/nt" --own "$OUT/own") || against=()
      "$PYTHON" "$HERE/scan_speed.py" "$OUT/kimi" "${against[@]}" | tee "$OUT/speed.txt" ;;
    *) echo "no step is called '$step'" >&2; exit 2 ;;
  esac
done
exit "$failed"
