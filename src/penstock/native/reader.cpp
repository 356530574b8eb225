// Reads files into memory while everything else goes on: threads that sleep in pread, fed from two queues.
//
// A job is one or several ranges of files.  Whoever is free takes the next chunk of the first job: urgent jobs go
// first, and a prefetch under way waits for them after the chunks in hand.  Unlike other entry points these keep
// something, the reader.  They may be called from any thread; ps_reader_destroy only when no other call is under way.
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "reader.h"

namespace {

constexpr i64 END_OF_FILE = -1;
constexpr i64 RETRIES = 3;
enum : i64 { NO_FAULT = 0, HALF = -1, END = -2, STALL = -3 };  // above 0: an errno

using Clock = std::chrono::steady_clock;
using Lock = std::unique_lock<std::mutex>;

i64 nanoseconds(Clock::duration time) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
}

bool passes(i64 error) { return error == EIO || error == EAGAIN; }  // it may go well the next time

struct Chunk {
    ps_piece range;
    i64 piece;  // of which it is a part
};

struct Job {
    std::vector<Chunk> chunks;
    std::size_t started = 0, running = 0;
    bool urgent = false;
    ps_outcome outcome = {};

    bool waiting() const { return started < chunks.size(); }
    bool finished() const { return !waiting() && running == 0; }
    void fail(i64 error, i64 piece, i64 offset) {
        if (outcome.error == 0) outcome = {error, piece, offset};
        started = chunks.size();  // the rest is of no use
    }
};

class Reader {
  public:
    Reader(i64 threads, i64 chunk) : limit_(threads), chunk_(chunk) {}
    ~Reader() { stop(); }

    // 0: there are no threads, because the reader was stopped or the system has none.
    i64 submit(const ps_piece* pieces, i64 count, bool urgent) {
        Lock lock(mutex_);
        if (stopping_ || !start()) return 0;
        const i64 id = ++last_id_;
        Job& job = jobs_[id];
        job.urgent = urgent;
        for (i64 i = 0; i < count; i++)
            for (i64 at = 0; at < pieces[i].needed; at += chunk_) {
                ps_piece range = pieces[i];
                range.offset += at;
                range.address += at;
                range.length = std::min(chunk_, range.length - at);
                range.needed = std::min(range.length, range.needed - at);
                job.chunks.push_back({range, i});
            }
        const i64 chunks = static_cast<i64>(job.chunks.size());
        if (job.waiting()) queue_of(job).push_back(&job);
        lock.unlock();
        // A thread for each chunk and no more: one that wakes for nothing takes a core from somebody who computes.
        for (i64 i = std::min(chunks, limit_); i > 0; i--) work_.notify_one();
        return id;
    }

    bool promote(i64 id) {
        Lock lock(mutex_);
        Job* job = find(id);
        if (!job || job->urgent || !job->waiting()) return false;
        leave_queue(*job);
        job->urgent = true;
        urgent_.push_back(job);
        return true;
    }

    bool cancel(i64 id) {
        Lock lock(mutex_);
        Job* job = find(id);
        if (!job || job->started > 0 || !job->waiting()) return false;
        leave_queue(*job);
        jobs_.erase(id);
        finished_.notify_all();  // somebody may be waiting for it
        return true;
    }

    // Jobs that nobody knows any more count as finished, so that nobody waits for them.
    bool finished(i64 id) {
        Lock lock(mutex_);
        return over(id);
    }

    i64 wait_any(const i64* ids, i64 count, i64 timeout_ms) {
        const i64* found = nullptr;
        Lock lock(mutex_);
        const bool any = finished_.wait_for(lock, std::chrono::milliseconds(timeout_ms), [&] {
            found = std::find_if(ids, ids + count, [&](i64 id) { return over(id); });
            return found != ids + count;
        });
        return any ? found - ids : -1;
    }

    bool forget(i64 id, ps_outcome* outcome) {
        Lock lock(mutex_);
        finished_.wait(lock, [&] { return over(id); });
        const Job* job = find(id);
        if (!job) return false;
        *outcome = job->outcome;
        jobs_.erase(id);
        return true;
    }

    ps_reader_stats stats() {
        Lock lock(mutex_);
        ps_reader_stats now = stats_;
        if (stats_.in_flight > 0) now.active += nanoseconds(Clock::now() - active_since_);
        return now;
    }

    void inject(i64 kind, i64 count, i64 fd, i64 from_offset) {
        Lock lock(mutex_);
        fault_ = {kind, count, fd, from_offset, fault_.number + 1};
        fault_changed_.notify_all();
    }

    // Drops what waits and returns when nothing is being read any more.
    void stop() {
        std::lock_guard one_at_a_time(stop_);
        {
            Lock lock(mutex_);
            stopping_ = true;
            for (auto* queue : {&urgent_, &prefetch_}) {
                for (Job* job : *queue) {
                    const Chunk& next = job->chunks[job->started];
                    job->fail(ECANCELED, next.piece, next.range.offset);
                }
                queue->clear();
            }
        }
        work_.notify_all();
        fault_changed_.notify_all();
        finished_.notify_all();
        for (std::thread& thread : threads_) thread.join();
        threads_.clear();
    }

  private:
    std::deque<Job*>& queue_of(const Job& job) { return job.urgent ? urgent_ : prefetch_; }

    void leave_queue(Job& job) { std::erase(queue_of(job), &job); }

    Job* find(i64 id) {
        const auto found = jobs_.find(id);
        return found == jobs_.end() ? nullptr : &found->second;
    }

    bool over(i64 id) {
        const Job* job = find(id);
        return !job || job->finished();
    }

    bool start() {
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for the threads of the program
        try {
            while (static_cast<i64>(threads_.size()) < limit_) threads_.emplace_back([this] { work(); });
        } catch (...) {  // then with fewer
        }
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
        return !threads_.empty();
    }

    void work() {
        Lock lock(mutex_);
        for (;;) {
            work_.wait(lock, [&] { return stopping_ || !urgent_.empty() || !prefetch_.empty(); });
            if (stopping_) return;
            auto& queue = urgent_.empty() ? prefetch_ : urgent_;
            Job& job = *queue.front();
            const Chunk chunk = job.chunks[job.started++];
            if (!job.waiting()) queue.pop_front();
            job.running++;
            i64 reached = 0;
            if (const i64 error = timed_read(chunk.range, reached, lock)) {
                if (job.waiting()) leave_queue(job);
                job.fail(error, chunk.piece, chunk.range.offset + reached);
            }
            job.running--;
            if (job.finished()) finished_.notify_all();
        }
    }

    i64 timed_read(const ps_piece& range, i64& reached, Lock& lock) {
        const auto start = Clock::now();
        if (stats_.in_flight++ == 0) active_since_ = start;
        const i64 error = read(range, reached, lock);
        const auto end = Clock::now();
        if (--stats_.in_flight == 0) stats_.active += nanoseconds(end - active_since_);
        stats_.reads++;
        stats_.bytes += reached;
        stats_.busy += nanoseconds(end - start);
        stats_.longest = std::max(stats_.longest, nanoseconds(end - start));
        return error;
    }

    // Reads until what is needed has been reached, or says why not.  The lock is open while the disk works.
    i64 read(const ps_piece& range, i64& reached, Lock& lock) {
        for (i64 retries = 0; reached < range.needed;) {
            const i64 fault = next_fault(range, lock);
            lock.unlock();
            const i64 got = attempt(range, reached, fault);  // bytes, or −errno
            const bool again = passes(-got) && retries < RETRIES;
            if (again) std::this_thread::sleep_for(std::chrono::milliseconds(1 << 2 * retries));
            lock.lock();
            if (got > 0) {
                reached += got;
            } else if (got == 0) {
                return END_OF_FILE;
            } else if (again) {
                retries++;
                stats_.retries++;
            } else if (got != -EINTR) {
                return -got;
            }
        }
        return 0;
    }

    static i64 attempt(const ps_piece& range, i64 reached, i64 fault) {
        i64 length = range.length - reached;
        if (fault > 0) return -fault;
        if (fault == END) return 0;
        if (fault == HALF) length = std::max(length / 2 / 4096 * 4096, std::min<i64>(length, 4096));
        const int fd = static_cast<int>(range.fd);
        const i64 offset = range.offset + reached;
        const i64 got = pread(fd, range.address + reached, static_cast<std::size_t>(length), offset);
        if (got < 0) return -errno;
#if defined(POSIX_FADV_DONTNEED)
        if (range.cached) posix_fadvise(fd, offset, got, POSIX_FADV_DONTNEED);
#endif
        return got;
    }

    // The fault that tests asked for, if this read is meant.  The lock has been closed since the chunk was taken, so
    // once a read is seen in flight its first fault is settled.
    i64 next_fault(const ps_piece& range, Lock& lock) {
        const bool meant = fault_.kind != NO_FAULT && fault_.count > 0 && fault_.fd == range.fd &&
                           range.offset + range.length > fault_.from_offset;
        if (!meant) return NO_FAULT;
        fault_.count--;
        if (fault_.kind != STALL) return fault_.kind;
        fault_changed_.wait(lock, [&, number = fault_.number] { return stopping_ || fault_.number != number; });
        return NO_FAULT;
    }

    struct Fault {
        i64 kind, count, fd, from_offset, number;
    };

    const i64 limit_, chunk_;
    std::mutex stop_, mutex_;  // mutex_ for everything below
    std::condition_variable work_, finished_, fault_changed_;
    std::vector<std::thread> threads_;
    std::unordered_map<i64, Job> jobs_;   // those that nobody has forgotten yet
    std::deque<Job*> urgent_, prefetch_;  // those with chunks that nobody has taken yet
    i64 last_id_ = 0;
    bool stopping_ = false;
    ps_reader_stats stats_ = {};
    Clock::time_point active_since_;
    Fault fault_ = {};
};

}  // namespace

// A reader with so many threads, started with the first job, each reading at most `chunk` bytes at a time.
PS_EXPORT Reader* ps_reader_create(i64 threads, i64 chunk) noexcept { return new Reader(threads, chunk); }

// Drops what waits (it fails with ECANCELED) and returns when nothing is being read any more.
PS_EXPORT void ps_reader_stop(Reader* reader) { reader->stop(); }

// ps_reader_stop, and the end of the reader.
PS_EXPORT void ps_reader_destroy(Reader* reader) { delete reader; }

// A new job's number, from 1 upwards; 0 if nobody is there to do it.  Memory and files must stay until it has finished.
PS_EXPORT i64 ps_reader_submit(Reader* reader, const ps_piece* pieces, i64 count, i64 urgent) noexcept {
    return reader->submit(pieces, count, urgent != 0);
}

// What is left of a prefetch becomes urgent: 1; nothing to do: 0.
PS_EXPORT i64 ps_reader_promote(Reader* reader, i64 job) noexcept { return reader->promote(job); }

// A job that has not begun is taken back and forgotten: 1; too late: 0.
PS_EXPORT i64 ps_reader_cancel(Reader* reader, i64 job) { return reader->cancel(job); }

// Whether a job has finished, well or not; one that is not known has.
PS_EXPORT i64 ps_reader_poll(Reader* reader, i64 job) { return reader->finished(job); }

// The lowest index of a finished job; −1 when the time is over.
PS_EXPORT i64 ps_reader_wait_any(Reader* reader, const i64* jobs, i64 count, i64 timeout_ms) {
    return reader->wait_any(jobs, count, timeout_ms);
}

// Waits for a job, says how it ended and forgets it: 1; not known: 0.
PS_EXPORT i64 ps_reader_forget(Reader* reader, i64 job, ps_outcome* outcome) { return reader->forget(job, outcome); }

PS_EXPORT void ps_reader_statistics(Reader* reader, ps_reader_stats* stats) { *stats = reader->stats(); }

// For tests: the next `count` reads of fd that reach beyond from_offset fail with errno `kind`; or get half of what
// they ask for (−1); or find the end of the file (−2); or wait (−3) until the next call of this.  0: no fault any more.
PS_EXPORT void ps_reader_inject(Reader* reader, i64 kind, i64 count, i64 fd, i64 from_offset) {
    reader->inject(kind, count, fd, from_offset);
}
