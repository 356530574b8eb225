#include "step_bytes.h"

#include <algorithm>

#include "inputs.h"
#include "steps.h"

constexpr i64 DECODES = i64{1} << ORDERS;  // a bit behind those of the orders

PS_EXPORT i64 ps_input_bits(i64 type) {
    if (type == W_DECODED) return DECODES;
    const Wants want = wants(type);
    if (!want.quantised) return 0;
    return i64{1} << want.order | (want.planes ? i64{1} << PLANES : 0);
}

PS_EXPORT i64 ps_step_bytes(const ps_step_sizes* sizes, i64 rows, i64 threads) {
    const ps_step_sizes& s = *sizes;
    const i64 streams = s.streams * s.hidden, heads = s.heads * s.dim, middle = s.o_groups * s.o_rank;
    const i64 between = std::max({hyper_floats(s, rows), projections_floats(s, rows), router_floats(s, rows),
                                  select_floats(s.index_topk, select_parts(threads))});
    const i64 group = s.o_groups ? heads / s.o_groups : 0;
    const i64 call =
        std::max({products_bytes(s, 1, rows, streams, 1), products_bytes(s, MAX_PROJECTIONS, rows, s.hidden, 1),
                  products_bytes(s, 2, rows, s.projected_width, 1), products_bytes(s, s.o_groups, rows, group, s.o_groups),
                  products_bytes(s, 1, rows, middle, 1), experts_bytes(s, rows)});
    // A row's dimensions that are rotated are at most all of them.
    const i64 piece = std::max({attention_piece_floats(s.heads, s.dim),
                                select_piece_floats(s.index_topk, s.index_heads, s.index_dim),
                                compress_piece_floats(std::max(s.dim, s.index_dim), s.dim / 2, s.ratio),
                                route_piece_floats(s.experts)});
    const i64 columns = std::max({streams, s.hidden, s.projected_width, group, middle, s.expert_width, s.shared_width});
    // Two weights are decoded at the same time: an expert's gate and up.
    const i64 decoded = s.inputs & DECODES ? decoded_floats(columns) + decoded_floats(s.hidden) : 0;
    const i64 every_thread = float_bytes(piece + decoded + select_floats(s.index_topk, 1)) +
                             scratch_held(std::max(products_piece_bytes(), experts_piece_bytes()));
    return float_bytes(layer_floats(s, rows) + between) + scratch_held(call) + threads * every_thread;
}
