#!/usr/bin/env bash
# What only a machine with an NVIDIA card can show, in parts of under 8 minutes each:
#
#   benchmarks/gpu_check.sh [PART]...
#
# PART is tests, sanitize, race_ and a precision (fp32 tf32 fp16 bf16 fp8), proofs, curves, bench, start, run, chat,
# peers, or all.
#
# Needs python3 with numpy, attrs and the `cuda` extra; wheels in .whl/ are installed beside it when there are any
# (a machine without a network). Everything is merged into one JSON, $OUT/gpu_check.json (OUT is ./runs/gpu_check
# unless set), each part with the commit it ran on. The last lines are a short table; the exit code is 1 when a part
# failed.
set -u -o pipefail
cd "$(dirname "$0")/.."
OUT=${OUT:-runs/gpu_check}
PYTHON=${PYTHON:-python3}
SECONDS_A_PART=${SECONDS_A_PART:-460}
TESTS=${TESTS:-tests/gpu}
COMMIT=${COMMIT:-$(git rev-parse HEAD 2>/dev/null || echo unknown)}  # a copy without its history is told
mkdir -p "$OUT"
export PYTHONUNBUFFERED=1 PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"

if compgen -G ".whl/*.whl" >/dev/null; then
  site=$(mktemp -d)
  $PYTHON -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target "$site" .whl/*.whl || exit 1
  export PYTHONPATH="$PWD:$site${PYTHONPATH:+:$PYTHONPATH}"
fi

# Most of a test is its twin on the processor, so several run beside each other where pytest-xdist is installed; but first
# those that ask the driver how much of the card is in use. (pytest-benchmark warns of being disabled by xdist.)
run_tests() {
  local common="-q --maxfail=40 --durations=12 -p no:cacheprovider -o addopts=--import-mode=importlib $TESTS"
  local processes=${TEST_PROCESSES:-6} beside=""
  $PYTHON -m pytest $common -m alone --junitxml="$OUT/tests.alone.xml" || return
  if $PYTHON -c "import xdist" 2>/dev/null; then
    beside="-p no:benchmark -n $processes --dist worksteal"
    export OMP_NUM_THREADS=$((($(nproc) + processes - 1) / processes))
  fi
  $PYTHON -m pytest $common -m "not alone" $beside --junitxml="$OUT/tests.xml"
}

sanitize() {  # tool, then precisions; the tool's own limit leaves the others their time
  local tool=$1 log="$OUT/sanitize_$1_$2.log"
  shift
  echo "compute-sanitizer --tool $tool: $*"
  timeout "${SECONDS_A_TOOL:-430}" compute-sanitizer --tool "$tool" --error-exitcode 9 --target-processes all \
    $PYTHON benchmarks/sanitize.py "$@" >"$log" 2>&1
  local code=$?
  tail -n 4 "$log"
  if grep -q "Device not supported" "$log"; then echo "$tool: refuses this device"; return 0; fi
  [ $code -eq 124 ] && echo "$tool: cut off by the time limit"
  return $code
}
export -f sanitize

run_sanitize() {
  local failed=0
  SECONDS_A_TOOL=200 sanitize memcheck fp32 tf32 fp16 bf16 fp8 || failed=1
  SECONDS_A_TOOL=200 sanitize initcheck fp32 tf32 fp16 bf16 fp8 || failed=1
  return $failed
}

# racecheck is the slowest by far: each precision is a part of its own, so that each fits the limit.
run_race_fp32() { sanitize racecheck fp32; }
run_race_tf32() { sanitize racecheck tf32; }
run_race_fp16() { sanitize racecheck fp16; }
run_race_bf16() { sanitize racecheck bf16; }
run_race_fp8() { sanitize racecheck fp8; }

run_proofs() { $PYTHON benchmarks/proofs.py --out "$OUT/proofs.json"; }

run_curves() { $PYTHON benchmarks/curves.py --out "$OUT/curves.json"; }

run_bench() { $PYTHON benchmarks/bench.py --out "$OUT/bench.json"; }

run_start() { $PYTHON benchmarks/start.py --out "$OUT/start.json" --profile "$OUT/start.txt"; }

run_run() { $PYTHON benchmarks/real_run.py --out "$OUT/run.json"; }

run_chat() { $PYTHON benchmarks/chat_speed.py --out "$OUT/chat.json"; }

run_peers() { $PYTHON benchmarks/bench.py --peers --out "$OUT/peers.json"; }

parts=${*:-all}
[ "$parts" = all ] && parts="tests sanitize race_fp32 race_tf32 race_fp16 race_bf16 race_fp8 proofs curves bench start run chat peers"
failed=0
for part in $parts; do
  if ! declare -F "run_$part" >/dev/null; then echo "there is no part $part" >&2; exit 2; fi
  echo "== $part"
  started=$SECONDS
  export -f run_$part
  export PYTHON OUT TESTS
  timeout "$SECONDS_A_PART" bash -c "set -u -o pipefail; run_$part" 2>&1 | tee "$OUT/$part.log" | tail -n 60
  code=${PIPESTATUS[0]}
  [ "$code" -eq 0 ] || failed=1
  $PYTHON benchmarks/merge_check.py "$OUT" "$part" "$code" $((SECONDS - started)) "$COMMIT"
done
$PYTHON benchmarks/merge_check.py "$OUT"
exit $failed
