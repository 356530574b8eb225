// Experts looked up in a table: which of a layer's experts are at hand, by id.
#include <algorithm>
#include <vector>

#include "products.h"

namespace {

// The experts that ids name and the table has, in ascending order of id.
struct Chosen {
    std::vector<i64> ids;
    std::vector<const ps_expert*> experts;

    Chosen(const ps_expert* const* table, i64 experts_in_all, const i64* routed, i64 count) {
        std::vector<char> named(static_cast<std::size_t>(experts_in_all));
        for (i64 i = 0; i < count; i++) named[static_cast<std::size_t>(routed[i])] = 1;
        for (i64 id = 0; id < experts_in_all; id++)
            if (named[static_cast<std::size_t>(id)] && table[id]) {
                ids.push_back(id);
                experts.push_back(table[id]);
            }
    }
    i64 count() const { return static_cast<i64>(ids.size()); }
};

}  // namespace

PS_EXPORT void ps_table_experts(const ps_expert* const* table, i64 experts, const i64* ids, const float* weights,
                                i64 slots, float limit, const ps_expert* shared, float shared_limit, const float* x,
                                i64 rows, float* out, i64 more, i64 threads) {
    const Chosen chosen(table, experts, ids, rows * slots);
    ps_experts(chosen.experts.data(), chosen.ids.data(), chosen.count(), ids, weights, slots, limit, shared,
               shared_limit, x, rows, out, more, threads);
}

PS_EXPORT void ps_table_terms(const ps_expert* const* table, i64 experts, const i64* ids, const float* weights,
                              i64 slots, float limit, const ps_expert* shared, float shared_limit, const float* x,
                              i64 rows, float* terms, i64 threads) {
    const Chosen chosen(table, experts, ids, rows * slots);
    ps_expert_terms(chosen.experts.data(), chosen.ids.data(), chosen.count(), ids, weights, slots, limit, shared,
                    shared_limit, x, rows, terms, threads);
}
