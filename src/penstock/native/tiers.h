// A layer's routed experts where a device has some of them in slots of its memory: who computes which of the others, and the
// processors' turn in the middle of the layer.
//
// The device writes a layer's rows and the experts that they chose to memory of the host's, then a number: its turn.  The
// host answers with a place for every expert and with that number; then it computes its share, and says the number once more.
// The device meanwhile brings what it is to have, by itself, and whoever took the turn has other things to do: a thread of its own
// computes the share with the helpers of threads.h.
#pragma once

#include "products.h"

// Seconds of an expert: over the link, from the disk, and on the processors by the rows that need it (1, 4, 16); and of a call
// that computes some, besides them.
struct ps_division {
    double link, disk, call, host[3];
    i64 exact;  // the processors compute none
};

// Who has which slot, by key: number of the block · experts + number of the expert; and what was decided last.
struct ps_placement {
    const ps_division* division;
    std::int32_t* slot_of;  // −1: none
    std::int32_t* ahead;    // slots of those that were brought before anybody asked for them, until somebody does
    std::int32_t* uses;
    std::int32_t* free;  // slots that nobody has, the last one to go first
    i64 experts, used, capacity;  // of a block; of a token; slots that may be held
    i64 free_count, ahead_count;
    std::int32_t *numbers, *fates;  // of the decision: the experts in ascending order, and what becomes of each
    i64 count, bring, host, on_disk, claimed;  // how many: of each fate; of those on neither side; brought ahead and needed
    double ends;  // seconds until the last of them is there
};

enum Fate : std::int32_t { HERE = 0, BRING = 1, HOST = 2 };

constexpr std::int32_t COMING = 1 << 30;  // beside a slot: its expert is to be brought there first

// Of so many experts that the device lacks, `on_disk` of them in the host's memory neither, each needed by about so many rows:
// how many the processors compute, so that the layer ends soonest; of equals the fewest.
PS_EXPORT i64 ps_host_share(const ps_division* division, i64 missing, i64 on_disk, double rows);

// Seconds until all of them are computed, or at least on the device, if the processors compute `share`.  Those on disk come one
// by one, and go by turns to whoever has a share left.
PS_EXPORT double ps_share_ends(const ps_division* division, i64 missing, i64 on_disk, double rows, i64 share);

// Decides for the experts that `rows` rows of a block have chosen, ids [count].  absent [experts], or null: those that the host's
// memory lacks.  What is to be brought has slots then, unless fewer are free: 0, and `ps_take_slots` follows.
PS_EXPORT i64 ps_decide(ps_placement* placement, i64 block, const i64* ids, i64 count, i64 rows, const std::uint8_t* absent);
PS_EXPORT void ps_take_slots(ps_placement* placement, i64 block);

// One layer's turns in steps of so many rows.
struct ps_turns {
    const std::uint32_t* sent;      // the device's latest turn
    std::uint32_t* answered;        // the turn that has places; the one that has the sum; then what `arrivals` was
    const std::uint32_t* arrivals;  // what has been asked for so far of what comes by itself
    std::int32_t* places;           // [experts]
    const i64 *ids, *likely;        // [rows, count]; [count]: what the next layer may want
    i64 *asked, *guessed;           // the same of the latest turn, which stay when the device writes the next
    const float *weights, *x;
    float* sum;  // [rows, hidden]
    const ps_expert* const* table;
    ps_placement* placement;
    i64 lanes, rows, count, hidden, block, threads;
    i64 idle, computing;  // nanoseconds: of waiting in the latest turn; of computing so far
    double limit;
};

enum Taken : i64 { NOT_YET = 0, TAKEN = 1, NO_ROOM = 2 };

// Waits for a turn of the device at most so many microseconds, and answers it; `live` of the rows are not padding.  NO_ROOM: too
// few slots are free.  When that is different, it is called again for the same turn, with `decided`.
PS_EXPORT i64 ps_take_turn(ps_turns* turns, i64 turn, i64 live, i64 microseconds, i64 decided);

// Until nothing of any turn is being computed.
PS_EXPORT void ps_finish_turns();
