// The keys that a row of a step sees: raw ones of its window, then compressed ones.  Keys of tokens of this step are not in the window's
// ring yet: a step may be longer than the ring, and it may fail.
#pragma once

#include "common.cuh"

struct Keys {
    const u16* fresh;        // [rows, dim] f16: this step's
    const int* picks;        // [rows, pick_stride]: compressed rows to see, or null: all visible ones
    const int* pick_counts;  // [rows]
    const int *positions, *firsts;  // [rows]; firsts: the first row of the row's sequence in this step
    const char* const* states;      // [rows]
    RowsAt window, compressed;      // f16
    int window_length, ratio, pick_stride;  // ratio 0: there are no compressed rows
};

PS_DEVICE int near_keys(const Keys& k, int row) { return min(k.positions[row] + 1, k.window_length); }
PS_DEVICE int far_keys(const Keys& k, int row) { return !k.ratio ? 0 : k.picks ? k.pick_counts[row] : (k.positions[row] + 1) / k.ratio; }

// Those of one row, window first.
struct RowKeys {
    int near, far, fresh, place;  // fresh: the first key of the window that this step has made; place: of key 0 in the ring
    int capacity, window_apart, compressed_apart, fresh_apart;
    const char *own, *window, *compressed;  // own: where key 0 would be among the fresh ones
    const int* picks;

    PS_DEVICE RowKeys(const Keys& k, int row, int dim) : near(near_keys(k, row)), far(far_keys(k, row)) {
        const int first = row - (near - 1);
        fresh = max(0, k.firsts[row] - first), place = (k.positions[row] - (near - 1)) % k.window.capacity, capacity = k.window.capacity;
        fresh_apart = dim * 2, window_apart = k.window.apart, compressed_apart = k.compressed.apart;
        own = reinterpret_cast<const char*>(k.fresh) + static_cast<long long>(first) * fresh_apart;
        window = k.states[row] + k.window.at, compressed = k.states[row] + k.compressed.at;
        picks = k.picks ? k.picks + static_cast<size_t>(row) * k.pick_stride : nullptr;
    }
    PS_DEVICE const char* at(int key) const {
        if (key >= near) return compressed + static_cast<size_t>(picks ? picks[key - near] : key - near) * compressed_apart;
        if (key >= fresh) return own + static_cast<size_t>(key) * fresh_apart;
        const int at = place + key;
        return window + static_cast<size_t>(at < capacity ? at : at - capacity) * window_apart;
    }
};
