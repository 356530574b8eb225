// Working memory for one call: small amounts are kept for the thread's next call, large ones returned.
#pragma once

#include "memory.h"

// A call's memory and that of the pieces it is cut into are in use at the same time, on the same thread.
enum class For { CALL, PIECE };

constexpr i64 KEPT_SCRATCH = 1 << 20;  // more than that is returned

// What a thread may hold when it asks for so many bytes: twice that is kept, so that it need not grow again soon.
constexpr i64 scratch_held(i64 bytes) { return bytes > KEPT_SCRATCH ? bytes + 2 * KEPT_SCRATCH : 2 * bytes; }

template <For>
class Scratch {
  public:
    explicit Scratch(i64 bytes) {
        Kept& kept = mine();
        if (kept.taken || bytes > KEPT_SCRATCH) {
            memory_ = allocate(bytes);
            return;
        }
        if (kept.bytes < bytes) {
            std::free(kept.memory);
            kept.memory = allocate(2 * bytes);
            kept.bytes = 2 * bytes;
        }
        memory_ = kept.memory;
        kept.taken = borrowed_ = true;
    }
    ~Scratch() {
        if (borrowed_)
            mine().taken = false;
        else
            std::free(memory_);
    }
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;

    // At a multiple of 64.
    void* memory() const { return memory_; }

  private:
    struct Kept {
        void* memory = nullptr;
        i64 bytes = 0;
        bool taken = false;
        ~Kept() { std::free(memory); }
    };
    static Kept& mine() {
        thread_local Kept kept;
        return kept;
    }

    void* memory_ = nullptr;
    bool borrowed_ = false;
};

// Cuts one piece of memory into arrays that begin at multiples of 64: first add up the bytes, then ask where they are.
class Layout {
  public:
    template <class T>
    i64 add(i64 count) {
        const i64 at = bytes_;
        bytes_ += (count * static_cast<i64>(sizeof(T)) + 63) / 64 * 64;
        return at;
    }
    i64 bytes() const { return bytes_; }

  private:
    i64 bytes_ = 0;
};

template <class T>
T* at(void* memory, i64 offset) {
    return reinterpret_cast<T*>(static_cast<char*>(memory) + offset);
}
