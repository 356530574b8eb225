#include "threads.h"

#if defined(__linux__) && !defined(PENSTOCK_PORTABLE)
#define PS_LINUX  // what only Linux tells of threads, and lets them do
#endif

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>
#if defined(PS_LINUX)
#include <sys/syscall.h>
#endif

#include <algorithm>
#include <atomic>
#include <bitset>
#include <chrono>
#include <cinttypes>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <thread>
#include <utility>

using u32 = std::uint32_t;
using u64 = std::uint64_t;

namespace {

constexpr i64 MAX_HELPERS = 255;
constexpr u32 NO_PIECE = ~0u;
std::atomic<i64> helper_patience{400};  // microseconds that a helper watches before it sleeps: more than Python takes between calls
constexpr auto CALLER_PATIENCE = std::chrono::microseconds(40);  // the same for a caller whose helpers are late

inline void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("isb");  // "yield" does nothing on most cores
#endif
}

// Watches until done() or until `patience` has passed; the clock is looked at now and then only.
template <class Done>
bool watch(std::chrono::microseconds patience, Done done) {
    auto end = std::chrono::steady_clock::now() + patience;
    do {
        for (int i = 0; i < 32; i++) {
            if (done()) return true;
            pause();
        }
    } while (std::chrono::steady_clock::now() < end);
    return done();
}

// Nanoseconds that this thread has been ready to run and had no core; -1 where the system does not say.
i64 time_without_core() {
#if defined(PS_LINUX)
    i64 ran = 0, waited = 0;
    if (std::FILE* file = std::fopen("/proc/thread-self/schedstat", "re")) {
        const int found = std::fscanf(file, "%" SCNd64 " %" SCNd64, &ran, &waited);
        std::fclose(file);
        if (found == 2) return waited;
    }
#endif
    return -1;
}

// Nanoseconds of a core that a clock of the processor's time has seen; 0 of a thread that is gone.
i64 core_time(clockid_t clock) {
    timespec time = {};
    if (clock_gettime(clock, &time)) return 0;
    return static_cast<i64>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

clockid_t clock_of_this_thread() {
    clockid_t clock = CLOCK_THREAD_CPUTIME_ID;
#if defined(PS_LINUX)
    pthread_getcpuclockid(pthread_self(), &clock);  // by its number, so that others may look at it
#endif
    return clock;
}

// For a helper who shares its core with another program: it is the one everybody else waits for, again and again.  So it
// stays away for a while, and for longer each time it comes back to the same.
class Bench {
  public:
    // To be called when others had to wait for this helper.  beside: what all threads of this program have had of cores
    // that do not compute.  Those that read files take a core from a helper too, the more so where the memory that they
    // read to is new, and now and then a helper waits behind its caller; both are over sooner than it would come back.
    // What counts is whether somebody else had a good part of the core, over a while.
    void consider(i64 beside) {
        const auto now = Clock::now();
        if (now - asked_ < A_WHILE) return;
        const i64 waited = time_without_core(), lost = waited - waited_ - std::max<i64>(0, beside - beside_);
        const i64 passed = std::chrono::nanoseconds(now - asked_).count();
        waited_ = waited;
        beside_ = beside;
        asked_ = now;
        if (lost < passed / 4) return;
        span_ = now - back_ < 2 * span_ ? std::min<std::chrono::milliseconds>(2 * span_, LONGEST) : SHORTEST;
        std::this_thread::sleep_for(span_);
        asked_ = back_ = now + span_;
    }

  private:
    using Clock = std::chrono::steady_clock;
    static constexpr std::chrono::milliseconds A_WHILE{30}, SHORTEST{5}, LONGEST{160};
    i64 waited_ = time_without_core(), beside_ = 0;
    std::chrono::milliseconds span_ = SHORTEST;
    Clock::time_point asked_ = Clock::now(), back_{};
};

thread_local bool inside = false;  // this thread is running a body

// One job at a time.  Its number and the next free piece are one atomic word, the ticket: a helper that comes late and
// still believes in an older job cannot take a piece, so nobody ever waits for a helper that holds none.  Before anything
// of a new job is written the old ticket is closed, so that nobody takes a piece of the old job's number for the new.
class Pool {
  public:
    void run(i64 pieces, i64 threads, void (*body)(void*, i64), void* context) {
        std::unique_lock owner(owner_, std::try_to_lock);
        if (!owner) {  // another thread's call has the helpers
            serial(pieces, body, context);
            return;
        }
        const i64 helpers = std::min({threads - 1, pieces - 1, MAX_HELPERS});
        while (started_ < helpers && start()) started_++;
        caller_.store(clock_of_this_thread(), std::memory_order_relaxed);
        ticket_.store(static_cast<u64>(job_) << 32 | NO_PIECE);
        body_.store(body, std::memory_order_release);
        context_.store(context, std::memory_order_release);
        pieces_.store(static_cast<u32>(pieces), std::memory_order_release);
        helpers_.store(static_cast<u32>(helpers), std::memory_order_relaxed);
        done_.store(0, std::memory_order_relaxed);
        const u32 job = ++job_;
        ticket_.store(static_cast<u64>(job) << 32);
        if (asleep_.load() > 0) {
            { std::lock_guard lock(sleep_); }  // a helper between its last look and its sleep holds this
            wake_.notify_all();
        }
        inside = true;
        drain(job);
        inside = false;
        auto finished = [&] { return done_.load(std::memory_order_acquire) == static_cast<u32>(pieces); };
        if (watch(CALLER_PATIENCE, finished)) return;
        const Rescue rescue(*this, job);
        std::unique_lock lock(sleep_);
        caller_waits_.store(true);
        finished_.wait(lock, finished);
        caller_waits_.store(false);
    }

    static void serial(i64 pieces, void (*body)(void*, i64), void* context) {
        bool before = inside;
        inside = true;
        for (i64 piece = 0; piece < pieces; piece++) body(context, piece);
        inside = before;
    }

  private:
    // holds: where a helper says that it has a piece of the job.
    void drain(u32 job, std::atomic<u32>* holds = nullptr) {
        u64 ticket = ticket_.load(std::memory_order_acquire);
        while (ticket >> 32 == job) {
            // These may be the next job's already.  Then the ticket is closed by now, and the piece not to be had.
            auto body = body_.load(std::memory_order_acquire);
            auto context = context_.load(std::memory_order_acquire);
            u32 pieces = pieces_.load(std::memory_order_acquire);
            if (static_cast<u32>(ticket) >= pieces) return;
            if (!ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel)) continue;
            if (holds) holds->store(job, std::memory_order_relaxed);
            body(context, static_cast<i64>(static_cast<u32>(ticket)));
            if (holds) holds->store(0, std::memory_order_relaxed);
            if (done_.fetch_add(1) + 1 == pieces && caller_waits_.load()) {
                { std::lock_guard lock(sleep_); }
                finished_.notify_all();
            }
            ticket = ticket_.load(std::memory_order_acquire);
        }
    }

    void help(u32 number) {
        inside = true;
#if defined(PS_LINUX)
        ids_[number].store(static_cast<int>(syscall(SYS_gettid)));  // gettid itself is younger than some systems
#endif
        clocks_[number].store(clock_of_this_thread(), std::memory_order_relaxed);
        Bench bench;
        u32 seen = 0;
        auto changed = [&] { return static_cast<u32>(ticket_.load(std::memory_order_acquire) >> 32) != seen; };
        for (;;) {
            if (!watch(std::chrono::microseconds(helper_patience.load(std::memory_order_relaxed)), changed)) {
                std::unique_lock lock(sleep_);
                asleep_.fetch_add(1);
                wake_.wait(lock, [&] { return static_cast<u32>(ticket_.load() >> 32) != seen; });
                asleep_.fetch_sub(1);
            }
            seen = static_cast<u32>(ticket_.load(std::memory_order_acquire) >> 32);
            if (number < helpers_.load(std::memory_order_relaxed)) drain(seen, &holds_[number]);
            if (rescued_[number].exchange(false, std::memory_order_relaxed)) bench.consider(beside());
        }
    }

    // What threads of this program that do not compute have had of cores so far, in nanoseconds.
    i64 beside() const {
        i64 computing = core_time(caller_.load(std::memory_order_relaxed));
        for (const auto& clock : clocks_)
            if (const clockid_t of = clock.load(std::memory_order_relaxed)) computing += core_time(of);
        return core_time(CLOCK_PROCESS_CPUTIME_ID) - computing;
    }

    bool start() {
        return start_thread([this, number = static_cast<u32>(started_)] { help(number); });  // else with fewer
    }

    // A helper that lost its core with a piece in hand may wait for milliseconds to get it back.  Its caller has nothing
    // left to do and is about to sleep: while this lives, such helpers may run on the caller's core and nowhere else, which
    // moves them there at once.
    class Rescue {
      public:
#if defined(PS_LINUX)
        Rescue(Pool& pool, u32 job) : pool_(pool) {
            cpu_set_t here;
            CPU_ZERO(&here);
            const int cpu = sched_getcpu();
            if (cpu < 0 || cpu >= CPU_SETSIZE || sched_getaffinity(0, sizeof everywhere_, &everywhere_)) return;
            CPU_SET(cpu, &here);
            for (i64 i = 0; i < pool.started_; i++)
                if (pool.holds_[i].load(std::memory_order_relaxed) == job) {
                    pool.rescued_[i].store(true, std::memory_order_relaxed);
                    sched_setaffinity(pool.ids_[i].load(), sizeof here, &here);
                    moved_[i] = true;
                }
        }
        ~Rescue() {
            for (i64 i = 0; i < pool_.started_; i++)
                if (moved_[i]) sched_setaffinity(pool_.ids_[i].load(), sizeof everywhere_, &everywhere_);
        }

      private:
        Pool& pool_;
        cpu_set_t everywhere_;
        std::bitset<MAX_HELPERS> moved_;
#else
        Rescue(Pool&, u32) {}
#endif
    };

    std::mutex owner_;
    i64 started_ = 0;
    std::atomic<u32> holds_[MAX_HELPERS] = {};
    std::atomic<bool> rescued_[MAX_HELPERS] = {};
    std::atomic<int> ids_[MAX_HELPERS] = {};
    std::atomic<clockid_t> caller_{CLOCK_THREAD_CPUTIME_ID}, clocks_[MAX_HELPERS] = {};  // 0: not started
    u32 job_ = 0;

    alignas(64) std::atomic<u64> ticket_{0};
    alignas(64) std::atomic<void (*)(void*, i64)> body_{nullptr};
    std::atomic<void*> context_{nullptr};
    std::atomic<u32> pieces_{0}, helpers_{0};
    alignas(64) std::atomic<u32> done_{0};
    alignas(64) std::mutex sleep_;
    std::condition_variable wake_, finished_;
    std::atomic<int> asleep_{0};
    std::atomic<bool> caller_waits_{false};
};

// Never destroyed: helpers may outlive every static destructor.
std::atomic<Pool*> pool{nullptr};
std::once_flag once;

Pool& shared_pool() {
    std::call_once(once, [] {
        pool = new Pool;
        // The parent's helpers and the state of its locks mean nothing in a child.
        pthread_atfork(nullptr, nullptr, [] {
            pool = new Pool;
            inside = false;
        });
    });
    return *pool;
}

}  // namespace

void parallel_run(i64 pieces, i64 threads, void (*body)(void* context, i64 piece), void* context) {
    if (pieces <= 0) return;
    if (inside || threads <= 1 || pieces == 1)
        Pool::serial(pieces, body, context);
    else
        shared_pool().run(pieces, threads, body, context);
}

bool start_thread(std::function<void()> work) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool good = true;
    try {
        std::thread(std::move(work)).detach();
    } catch (...) {
        good = false;
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return good;
}

PS_EXPORT void ps_threads_patience(i64 microseconds) { helper_patience = microseconds; }

PS_EXPORT i64 ps_wait_for(const u32* word, i64 value, i64 patience, i64 microseconds) {
    constexpr std::chrono::microseconds GLANCE{20};
    const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(microseconds);
    auto there = [=] { return __atomic_load_n(word, __ATOMIC_ACQUIRE) == static_cast<u32>(value); };
    if (watch(std::chrono::microseconds(std::min(patience, microseconds)), there)) return 1;
    while (!there()) {
        if (std::chrono::steady_clock::now() >= end) return 0;
        std::this_thread::sleep_for(GLANCE);
    }
    return 1;
}

PS_EXPORT void ps_threads_check(i64 pieces, i64 threads, std::int32_t* counts) {
    parallel_for(pieces, threads, [&](i64 piece) {
        parallel_for(2, threads, [&](i64 half) {
            if (half == 0) counts[piece]++;  // the other half may run at the same time, if there is but one piece
        });
    });
}
