// Pooling by itself.
#include "pool.h"

#include <vector>

#include "share.h"

PS_DISPATCH void pool_rows(const float* values, const float* scores, i64 first, i64 last, i64 candidates, i64 dim,
                           Candidate* list, float* out) {
    for (i64 r = first; r < last; r++) {
        for (i64 c = 0; c < candidates; c++) {
            const i64 at = (r * candidates + c) * dim;
            list[c] = {values + at, scores + at, nullptr};
        }
        pool_window(list, candidates, dim, out + r * dim);
    }
}

// values, scores [n, candidates, dim]; out [n, dim].  A score of −inf takes its candidate out.
PS_EXPORT void ps_pool(const float* values, const float* scores, i64 n, i64 candidates, i64 dim, float* out,
                       i64 threads) {
    over_rows(n, candidates * dim, threads, [&](i64 a, i64 b) {
        std::vector<Candidate> list(static_cast<std::size_t>(candidates));
        pool_rows(values, scores, a, b, candidates, dim, list.data(), out);
    });
}
