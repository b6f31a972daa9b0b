#!/usr/bin/env bash
# Real SGLang servers with dummy weights against the predictions of finished runs: NCCL carrying the all-reduces, SGLang's own
# all-reduce, and NCCL without peer access. Each step is one `nccltune validate sglang`; a step that was cut off goes on where
# it was when the script is called again, and every step is packed as it ends.
#
#   benchmarks/servers_on_gpus.sh OUT
#
#   P2P=RUN SHM=RUN   runs to predict from: with peer access, and with NCCL_P2P_DISABLE=1 in the base
#   MODEL=FOLDER      config.json of the target; FOLDER-eagle3 beside it. DENSE=FOLDER: a dense one, for the step of that name
#   STEPS="nccl custom shm dense"   TP=ranks of the runs   DRAFTS=1,2,3,4,6,8   BATCHES=1,4,16   ACCEPT=2
#   LAUNCH='python3 -m sglang.launch_server': how a server is started
#   WORSE='NCCL_PROTO=Simple;NCCL_ALGO=Ring'   LIMIT=540: seconds per step, then it is interrupted and can go on
#   DRY=1             print the servers and the time, start none
set -uo pipefail
OUT=${1:?folder for the results}
: "${P2P:?P2P=a run with peer access}" "${MODEL:?MODEL=folder of the target}"
STEPS=${STEPS:-nccl custom shm dense}
DRAFTS=${DRAFTS:-1,2,3,4,6,8}; BATCHES=${BATCHES:-1,4,16}; ACCEPT=${ACCEPT:-2}; LIMIT=${LIMIT:-540}
WORSE=${WORSE:-NCCL_PROTO=Simple;NCCL_ALGO=Ring}
PYTHON=${PYTHON:-python3}
# Without flashinfer and a tokenizer, as on a machine without a network; the graph covers the verify.
ARGS=${ARGS:---skip-tokenizer-init --grammar-backend none --attention-backend triton --sampling-backend pytorch --disable-prefill-cuda-graph --context-length 4096 --max-total-tokens 131072 --mem-fraction-static 0.85}
FIRST=${BATCHES%%,*}; LAST=${BATCHES##*,}; WIDE=${DRAFTS##*,}
mkdir -p "$OUT"
failed=0
validate() {  # name, run, model, options
  local name=$1 run=$2 model=$3 code; shift 3
  local folder=$OUT/$name asked=()
  if [ -e "$folder/request.json" ]; then
    asked=(--resume "$folder")
  else
    asked=(--model-path "$model" --draft-model-path "$model-eagle3" --run "$run" --draft-tokens "$DRAFTS" --batch "$BATCHES"
      --context 256 --output-tokens 192 --repeats 2 --load-format dummy --simulate-accept-length "$ACCEPT"
      --env SGLANG_SIMULATE_UNIFORM_EXPERTS=1 --env SGLANG_LOG_MS=1 --extra-args "$ARGS" -o "$folder" "$@")
    [ -n "${TP:-}" ] && asked+=(--tp "$TP")
    [ -n "${LAUNCH:-}" ] && asked+=(--launch "$LAUNCH")
  fi
  if [ -n "${DRY:-}" ]; then
    "$PYTHON" -m nccltune validate sglang "${asked[@]}" --dry-run | grep -v '^  ' || failed=1
    return
  fi
  timeout --signal=INT --kill-after=120 "$LIMIT" "$PYTHON" -m nccltune validate sglang "${asked[@]}" >"$OUT/$name.txt" 2>>"$OUT/$name.err"
  code=$?
  echo "$name: exit $code; $(tail -1 "$OUT/$name.err")"
  [ "$code" -eq 0 ] || failed=1
  tar -C "$OUT" -czf "$OUT/$name.tar.gz" "$name"
}
calibrate=(--calibrate "base:$FIRST:1" --calibrate "base:$LAST:1" --calibrate "base:$FIRST:3" --calibrate "base:$LAST:$WIDE")
for step in $STEPS; do
  case $step in
    nccl) validate nccl "$P2P" "$MODEL" --settings base,best --settings "$WORSE" --disable-custom-all-reduce --profile-steps 8 "${calibrate[@]}" ;;
    custom) validate custom "$P2P" "$MODEL" --settings base --settings "$WORSE" --env SGLANG_SKIP_P2P_CHECK=1 --profile-steps 8 ;;
    shm) validate shm "${SHM:?SHM=a run without peer access}" "$MODEL" --settings base,best --settings "$WORSE" --disable-custom-all-reduce "${calibrate[@]}" ;;
    dense) validate dense "$P2P" "${DENSE:?DENSE=folder of a dense target}" --settings base,best --settings "$WORSE" --disable-custom-all-reduce "${calibrate[@]}" ;;
    *) echo "no step is called '$step'" >&2; exit 2 ;;
  esac
done
exit "$failed"
