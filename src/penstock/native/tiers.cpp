#include "tiers.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "threads.h"

namespace {

constexpr double HOST_ROWS[] = {1, 4, 16};  // as in penstock.backend.device
constexpr i64 PATIENCE = 400;               // microseconds that the device is watched, before it is looked at now and then
constexpr i64 COMPANION_PATIENCE = 2000;    // the same for the next turn, before sleep

// Linear between what was measured, and beyond.
double host_at(const ps_division& times, double rows) {
    const int last = rows <= HOST_ROWS[1] ? 1 : 2;
    const double low = HOST_ROWS[last - 1], high = HOST_ROWS[last], first = times.host[last - 1];
    return first + (times.host[last] - first) * (rows - low) / (high - low);
}

// busy: seconds until the link is free
double ends(const ps_division& times, i64 missing, i64 on_disk, double rows, i64 share, double busy) {
    const double computing = host_at(times, rows);
    i64 copied = missing - share;
    double link = busy, host = share ? times.call : 0;
    for (i64 number = 0; number < missing; number++) {
        // those that are here come first
        const double there = static_cast<double>(std::max<i64>(0, number - (missing - on_disk) + 1)) * times.disk;
        const double by_link = std::max(link, there) + times.link, by_host = std::max(host, there) + computing;
        if (copied && (!share || by_link <= by_host)) {
            link = by_link;
            copied--;
        } else {
            host = by_host;
            share--;
        }
    }
    return std::max(link, host);
}

i64 host_share(const ps_division& times, i64 missing, i64 on_disk, double rows, double busy) {
    if (times.exact) return 0;
    i64 best = 0;
    double soonest = ends(times, missing, on_disk, rows, 0, busy);
    for (i64 share = 1; share <= missing; share++)
        if (const double end = ends(times, missing, on_disk, rows, share, busy); end < soonest) {
            best = share;
            soonest = end;
        }
    return best;
}

using Clock = std::chrono::steady_clock;

i64 nanoseconds(Clock::duration time) { return std::chrono::nanoseconds(time).count(); }

// Σ weight · expert(x) over the processors' experts, for all rows: those behind the last that counts repeat it.
void compute(const ps_turns& t, i64 live) {
    const ps_placement& p = *t.placement;
    const std::size_t row = static_cast<std::size_t>(t.hidden) * sizeof(float);
    if (p.host == 0) {
        std::memset(t.sum, 0, static_cast<std::size_t>(t.rows) * row);
        return;
    }
    thread_local std::vector<const ps_expert*> own;
    own.assign(static_cast<std::size_t>(p.experts + 1), nullptr);
    for (i64 i = 0; i < p.count; i++)
        if (p.fates[i] == HOST) own[static_cast<std::size_t>(p.numbers[i])] = t.table[p.numbers[i]];
    ps_experts(own.data(), p.experts + 1, t.asked, t.weights, t.count, static_cast<float>(t.limit), nullptr, 0, t.x, live,
               t.sum, 0, t.threads);
    for (i64 r = live; r < t.rows; r++) std::memcpy(t.sum + r * t.hidden, t.sum + (live - 1) * t.hidden, row);
}

void answer_with_sum(ps_turns& t, i64 turn, i64 live) {
    const auto begin = Clock::now();
    compute(t, live);
    if (t.placement->host) __atomic_fetch_add(&t.computing, nanoseconds(Clock::now() - begin), __ATOMIC_RELAXED);
    __atomic_store_n(t.answered + 1, static_cast<std::uint32_t>(turn), __ATOMIC_RELEASE);
}

// The thread that computes what turns leave to the processors, one turn at a time.  It watches for the next one for about as long
// as a layer takes, then sleeps.
class Companion {
  public:
    void begin(ps_turns& turns, i64 turn, i64 live) {
        finish();
        if (!started_ && !(started_ = start_thread([this] { work(); }))) return answer_with_sum(turns, turn, live);
        turns_ = &turns;
        turn_ = turn;
        live_ = live;
        asked_.fetch_add(1);
        if (asleep_.load()) {
            { std::lock_guard lock(sleep_); }  // between its last look and its sleep it holds this
            wake_.notify_one();
        }
    }
    void finish() const {
        while (done_.load(std::memory_order_acquire) != asked_.load(std::memory_order_relaxed)) std::this_thread::yield();
    }

  private:
    static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t));

    void work() {
        for (std::uint32_t next = 1;; next++) {
            if (!ps_wait_for(reinterpret_cast<const std::uint32_t*>(&asked_), next, COMPANION_PATIENCE, COMPANION_PATIENCE)) {
                std::unique_lock lock(sleep_);
                asleep_.store(true);
                wake_.wait(lock, [&] { return asked_.load() == next; });
                asleep_.store(false);
            }
            answer_with_sum(*turns_, turn_, live_);
            done_.store(next, std::memory_order_release);
        }
    }

    bool started_ = false;
    ps_turns* turns_ = nullptr;
    i64 turn_ = 0, live_ = 0;
    alignas(64) std::atomic<std::uint32_t> asked_{0};
    alignas(64) std::atomic<std::uint32_t> done_{0};
    std::mutex sleep_;
    std::condition_variable wake_;
    std::atomic<bool> asleep_{false};
};

// Never destroyed: its thread may outlive every static destructor.  A child of this process has no such thread, and makes its own.
std::atomic<Companion*> companion{nullptr};

Companion& the_companion() {
    static std::once_flag once;
    std::call_once(once, [] {
        companion = new Companion;
        pthread_atfork(nullptr, nullptr, [] { companion = new Companion; });
    });
    return *companion;
}

void say_places(const ps_turns& t) {
    const ps_placement& p = *t.placement;
    std::fill_n(t.places, p.experts, -1);
    for (i64 i = 0; i < p.count; i++) {
        if (p.fates[i] == HOST) continue;
        const std::int32_t slot = p.slot_of[t.block * p.experts + p.numbers[i]];
        t.places[p.numbers[i]] = p.fates[i] == BRING ? slot | COMING : slot;
    }
    std::copy_n(t.arrivals, t.lanes, t.answered + 2);
}

}  // namespace

i64 ps_host_share(const ps_division* division, i64 missing, i64 on_disk, double rows) {
    return host_share(*division, missing, on_disk, rows, 0);
}

double ps_share_ends(const ps_division* division, i64 missing, i64 on_disk, double rows, i64 share) {
    return ends(*division, missing, on_disk, rows, share, 0);
}

i64 ps_decide(ps_placement* placement, i64 block, const i64* ids, i64 count, i64 rows, const std::uint8_t* absent) {
    ps_placement& p = *placement;
    std::fill_n(p.fates, p.experts, -1);
    for (i64 i = 0; i < count; i++) p.fates[ids[i]] = HERE;
    p.count = p.on_disk = p.claimed = 0;
    // What was brought ahead is on its way, but for about one expert, which has come while the device computed.
    const double busy = static_cast<double>(std::max<i64>(0, p.ahead_count - 1)) * p.division->link;
    thread_local std::vector<i64> missing;  // of the numbers
    missing.clear();
    for (i64 number = 0; number < p.experts; number++) {
        if (p.fates[number] < 0) continue;
        const i64 key = block * p.experts + number, at = p.count++;  // at ≤ number: what is overwritten has been read
        p.numbers[at] = static_cast<std::int32_t>(number);
        if (p.ahead_count && p.ahead[key] >= 0) {
            p.slot_of[key] = std::exchange(p.ahead[key], -1);
            p.ahead_count--;
            p.claimed++;
        }
        p.fates[at] = p.slot_of[key] >= 0 ? HERE : BRING;
        if (p.fates[at] == HERE) continue;
        missing.push_back(at);
        p.on_disk += absent && absent[number];
    }
    const i64 lacking = static_cast<i64>(missing.size());
    const double each = std::max(1.0, static_cast<double>(rows * p.used) / static_cast<double>(std::max<i64>(1, p.count)));
    const i64 wanted = std::max(host_share(*p.division, lacking, p.on_disk, each, busy), p.count - p.capacity);  // what there is no slot for
    p.host = std::clamp<i64>(wanted, 0, lacking);
    p.bring = lacking - p.host;
    p.ends = ends(*p.division, lacking, p.on_disk, each, p.host, busy);
    // Those that are used least stay where they are: what the link has carried is to be worth it.
    std::partial_sort(missing.begin(), missing.begin() + p.host, missing.end(), [&](i64 a, i64 b) {
        const auto uses = [&](i64 at) { return p.uses[block * p.experts + p.numbers[at]]; };
        return uses(a) != uses(b) ? uses(a) < uses(b) : a < b;
    });
    for (i64 i = 0; i < p.host; i++) p.fates[missing[static_cast<std::size_t>(i)]] = HOST;
    if (p.bring > p.free_count) return 0;
    ps_take_slots(placement, block);
    return 1;
}

void ps_take_slots(ps_placement* placement, i64 block) {
    ps_placement& p = *placement;
    for (i64 i = 0; i < p.count; i++)
        if (p.fates[i] == BRING) p.slot_of[block * p.experts + p.numbers[i]] = p.free[--p.free_count];
}

i64 ps_take_turn(ps_turns* turns, i64 turn, i64 live, i64 microseconds, i64 decided) {
    ps_turns& t = *turns;
    if (decided) {
        ps_take_slots(t.placement, t.block);
    } else {
        const auto begin = Clock::now();
        // They will be needed soon: if they have gone to sleep there is time to wake them now.
        if (!t.placement->division->exact && __atomic_load_n(t.sent, __ATOMIC_RELAXED) != static_cast<std::uint32_t>(turn))
            parallel_for(t.threads, t.threads, [](i64) {});
        const bool came = ps_wait_for(t.sent, turn, PATIENCE, microseconds);
        t.idle = nanoseconds(Clock::now() - begin);
        if (!came) return NOT_YET;
        if (!ps_decide(t.placement, t.block, t.ids, live * t.count, live, nullptr)) return NO_ROOM;
    }
    std::copy_n(t.ids, t.rows * t.count, t.asked);
    if (t.likely) std::copy_n(t.likely, t.count, t.guessed);
    say_places(t);
    __atomic_store_n(t.answered, static_cast<std::uint32_t>(turn), __ATOMIC_RELEASE);
    if (t.placement->host)
        the_companion().begin(t, turn, live);
    else
        answer_with_sum(t, turn, live);
    return TAKEN;
}

void ps_finish_turns() { the_companion().finish(); }
