set -o pipefail
export PYTHONUNBUFFERED=1 PYTHONPATH=src:. XDG_CACHE_HOME=/tmp/pscache PYTHONDONTWRITEBYTECODE=1
python3 -c "
import importlib
for m in 'rich typer tokenizers fastapi llguidance gguf pytest hypothesis transformers cuda.bindings cuda.core uvicorn pydantic jinja2'.split():
    try: importlib.import_module(m); print(m,'ok')
    except Exception as e: print(m,'MISSING',e)
"
nproc; free -g | head -2; nvidia-smi | head -15
timeout 280 python3 -m pytest tests/gpu/test_engine.py tests/gpu/test_tiny.py tests/gpu/test_attention.py tests/gpu/test_hyper.py -c /dev/null --rootdir=. --confcutdir=tests/gpu -q -rA --tb=short -p no:cacheprovider 2>&1 | tee $OUT/log | tail -150
