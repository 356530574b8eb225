// What a reader is given and what it tells.
#pragma once

#include "api.h"

// A range of a file and where it goes.  Bytes beyond `needed` may stay unread: the range is as long as direct reads
// want it and may reach over the end of the file.
struct ps_piece {
    i64 fd, offset, length, needed;
    i64 cached;  // read by way of the page cache, which then forgets it
    char* address;
};

// How a job ended.  If it failed: in which of its pieces and at which offset of the file.
struct ps_outcome {
    i64 error;  // 0: all is here; END_OF_FILE; else an errno
    i64 piece, offset;
};

// A read is one chunk, retries included; times are nanoseconds.
struct ps_reader_stats {
    i64 bytes, reads, retries, in_flight;
    i64 busy, active;  // of all reads together; with at least one in flight
    i64 longest;
};
