#!/usr/bin/env bash
# Builds dist/ from this checkout: an sdist, a pure wheel, and a compiled wheel, tagged manylinux, for
# each Python named (`tools/wheels.sh 3.11 3.12`; default: all from 3.11 on that uv finds). Each wheel
# is proven: it is installed into an environment of its own and runs the demo there. Needs a package
# index, and gcc.
set -euo pipefail
cd "$(dirname "$0")/.."
uv=$PWD/.uv/bin/uv
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

pythons=("$@")
[ $# -gt 0 ] || for python in 3.11 3.12 3.13 3.14; do
    "$uv" python find --quiet --no-python-downloads "$python" >/dev/null 2>&1 && pythons+=("$python") ||
        echo "no compiled wheel for Python $python, which is not installed"
done

# The demo checks every answer of a router and of simulated engines. -I: not this checkout's code.
prove() { # WHEEL PYTHON KIND
    local home=$work/proof.$2.$3
    "$uv" venv --quiet --python "$2" "$home"
    "$uv" pip install --quiet --python "$home" --constraints requirements/gate.txt "$1[bench]"
    (cd "$work" && "$home/bin/python" -I -c "
import router.core.routing.request_run as hot
kind = 'pure' if hot.__file__.endswith('.py') else 'compiled'
assert kind == '$3', hot.__file__" && "$home/bin/pd-router" demo >"$work/demo.log" 2>&1 &&
        "$home/bin/pd-bench" --help >/dev/null) || { cat "$work/demo.log"; return 1; }
    echo "$(basename "$1"): the demo runs on Python $2"
}

rm -rf dist
# All wheels are made of the sdist, in environments of their own.
"$uv" build --quiet --python "${pythons[0]}" --build-constraints requirements/dev.txt --out-dir dist
prove dist/*-py3-none-any.whl "${pythons[0]}" pure

"$uv" venv --quiet "$work/tools"
"$uv" pip install --quiet --python "$work/tools" --require-hashes --requirement requirements/wheels.txt
for python in "${pythons[@]}"; do
    PD_ROUTER_COMPILE=1 "$uv" build --quiet --wheel --python "$python" \
        --build-constraints requirements/dev.txt --out-dir "$work/$python" dist/*.tar.gz
    # For older systems than this one, as far as the libraries that it uses allow.
    PATH=$work/tools/bin:$PATH auditwheel repair --wheel-dir dist "$work/$python"/*.whl
    prove dist/*-cp"${python/./}"-*.whl "$python" compiled
done
ls -1 dist
