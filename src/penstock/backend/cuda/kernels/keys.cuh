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

    PS_DEVICE int near(int row) const { return min(positions[row] + 1, window_length); }
    PS_DEVICE int far(int row) const { return !ratio ? 0 : picks ? pick_counts[row] : (positions[row] + 1) / ratio; }
    PS_DEVICE const char* at(int row, int key, int dim) const {
        const int count = near(row);
        if (key >= count) {
            const int place = picks ? picks[static_cast<size_t>(row) * pick_stride + key - count] : key - count;
            return states[row] + compressed.at + static_cast<size_t>(place) * compressed.apart;
        }
        const int back = count - 1 - key;
        if (row - back >= firsts[row]) return reinterpret_cast<const char*>(fresh + static_cast<size_t>(row - back) * dim);
        return states[row] + window.at + static_cast<size_t>((positions[row] - back) % window.capacity) * window.apart;
    }
};
