export PYTHONUNBUFFERED=1 PYTHONPATH=src:. XDG_CACHE_HOME=/tmp/pscache PYTHONDONTWRITEBYTECODE=1
P="python3 -m pytest -c /dev/null --rootdir=. --confcutdir=tests/gpu -q -s --tb=short -p no:cacheprovider"
( timeout 150 $P tests/gpu/test_engine.py > $OUT/engine.txt 2>&1; echo engine $? >> $OUT/rc.txt ) &
sleep 45
( timeout 100 $P tests/gpu/test_sample.py > $OUT/sample.txt 2>&1; echo sample $? >> $OUT/rc.txt ) &
( timeout 130 $P tests/gpu/test_tiny.py > $OUT/tiny.txt 2>&1; echo tiny $? >> $OUT/rc.txt ) &
wait
( timeout 100 $P tests/gpu/test_attention.py tests/gpu/test_hyper.py > $OUT/kernels.txt 2>&1; echo kernels $? >> $OUT/rc.txt ) &
( timeout 120 $P tests/gpu/test_products.py -k "Q6_K or FP8 or q6_k or fp8 or expert" > $OUT/products.txt 2>&1; echo products $? >> $OUT/rc.txt ) &
wait
timeout 100 python3 -m benchmarks.gpu --synth /dev/shm/s.gguf --layers 5 --prefill 1024 > $OUT/bench.txt 2>&1; echo bench $? >> $OUT/rc.txt
cat $OUT/rc.txt; for f in engine sample tiny kernels products bench; do echo "== $f"; tail -c 1500 $OUT/$f.txt; done
