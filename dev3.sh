export PYTHONUNBUFFERED=1 PYTHONPATH=src:. XDG_CACHE_HOME=/tmp/pscache PYTHONDONTWRITEBYTECODE=1
P="python3 -m pytest -c /dev/null --rootdir=. --confcutdir=tests/gpu -q -s --tb=short -p no:cacheprovider"
mount -o remount,size=110G /dev/shm; df -h /dev/shm | tail -1
( timeout 130 $P tests/gpu/test_engine.py tests/gpu/test_sample.py > $OUT/tests.txt 2>&1; echo tests $? >> $OUT/rc.txt ) &
( while sleep 1; do ps -o rss= -C python3 | sort -n | tail -1; done > $OUT/rss.txt ) & W=$!
( while sleep 2; do nvidia-smi --query-gpu=memory.used --format=csv,noheader; done > $OUT/vram.txt ) & V=$!
timeout 270 python3 -m benchmarks.gpu --synth /dev/shm/s.gguf --prefill 2048 > $OUT/bench.txt 2>&1; echo bench $? >> $OUT/rc.txt
kill $W $V
cat $OUT/rc.txt; sort -n $OUT/rss.txt | tail -1; sort -n $OUT/vram.txt | tail -1; for f in tests bench; do echo "== $f"; tail -c 4500 $OUT/$f.txt; done
