export PYTHONUNBUFFERED=1 PYTHONPATH=src:. XDG_CACHE_HOME=/tmp/pscache PYTHONDONTWRITEBYTECODE=1
P="python3 -m pytest -c /dev/null --rootdir=. --confcutdir=tests/gpu -q -s --tb=short -p no:cacheprovider"
timeout 60 python3 -m benchmarks.gpu --synth /dev/shm/s.gguf --layers 5 --prefill 512 --contexts 2048 --counts 1 --cases decode,rows > $OUT/bench.txt 2>&1; echo bench $? >> $OUT/rc.txt
python3 - > $OUT/speeds.txt 2>&1 <<'F'
from penstock.backend import open_backend
b=open_backend("cuda",1); print(b.description, b.speeds(), b.stats())
F
( timeout 120 $P tests/gpu > $OUT/tests.txt 2>&1; echo tests $? >> $OUT/rc.txt ) &
S="compute-sanitizer --launch-timeout 0 --print-limit 5"
for tool in memcheck racecheck synccheck; do
 ( timeout 110 $S --tool $tool $P tests/gpu/test_hyper.py tests/gpu/test_attention.py::test_attention tests/gpu/test_sample.py::test_small_vocabularies > $OUT/$tool.txt 2>&1; echo $tool $? >> $OUT/rc.txt ) &
done
( timeout 110 $S --tool memcheck $P tests/gpu/test_engine.py -k "rewinding or chunks or greedy" > $OUT/memengine.txt 2>&1; echo memengine $? >> $OUT/rc.txt ) &
wait
cat $OUT/rc.txt; for f in bench speeds tests memcheck racecheck synccheck memengine; do echo "== $f"; tail -c 1400 $OUT/$f.txt; done
