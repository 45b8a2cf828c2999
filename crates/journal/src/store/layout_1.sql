-- The first layout of the journal. Times are Unix milliseconds; ids, states and scopes are their texts; documents are
-- JSON. A migration that was released is never changed: a new layout is a new file.

PRAGMA application_id = 1380795465; -- "RMDI"

CREATE TABLE accounts (
    account TEXT PRIMARY KEY,
    newest_event INTEGER NOT NULL DEFAULT 0,
    slot_names INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;

CREATE TABLE operations (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    account TEXT NOT NULL,
    scope TEXT NOT NULL,
    key TEXT,
    fingerprint BLOB NOT NULL,
    request TEXT NOT NULL,
    parent TEXT,
    reserved TEXT NOT NULL,
    state TEXT NOT NULL,
    admitted_at INTEGER NOT NULL,
    finished_at INTEGER,
    outcome TEXT,
    -- When a finished one becomes a tombstone; not as long as it is pinned by its execution's record.
    keep_until INTEGER NOT NULL,
    pinned INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX operations_by_key ON operations (account, key, scope) WHERE key IS NOT NULL;
CREATE INDEX operations_by_parent ON operations (parent) WHERE parent IS NOT NULL;
CREATE INDEX operations_unfinished ON operations (number) WHERE state = 'pending';
CREATE INDEX operations_to_evict ON operations (keep_until) WHERE state <> 'pending' AND pinned = 0;

CREATE TABLE steps (
    operation INTEGER NOT NULL REFERENCES operations (number) ON DELETE CASCADE,
    place INTEGER NOT NULL,
    name TEXT NOT NULL,
    data TEXT NOT NULL,
    PRIMARY KEY (operation, place),
    UNIQUE (operation, name)
) STRICT, WITHOUT ROWID;

-- What still answers for a key: of an evicted operation, or (state 'cancelled') of a key that was cancelled ahead.
CREATE TABLE tombstones (
    account TEXT NOT NULL,
    key TEXT NOT NULL,
    scope TEXT NOT NULL,
    id TEXT UNIQUE,
    fingerprint BLOB,
    state TEXT NOT NULL,
    admitted_at INTEGER NOT NULL,
    finished_at INTEGER,
    outcome TEXT,
    until INTEGER NOT NULL,
    PRIMARY KEY (account, key, scope)
) STRICT, WITHOUT ROWID;
CREATE INDEX tombstones_to_evict ON tombstones (until);
CREATE INDEX tombstones_cancelled ON tombstones (account) WHERE state = 'cancelled';

-- The newest generation that a slot ever had; stays when the records of its generations are gone.
CREATE TABLE slots (
    account TEXT NOT NULL,
    slot TEXT NOT NULL,
    newest INTEGER NOT NULL,
    PRIMARY KEY (account, slot)
) STRICT, WITHOUT ROWID;

CREATE TABLE sandboxes (
    number INTEGER PRIMARY KEY,
    account TEXT NOT NULL,
    slot TEXT NOT NULL,
    generation INTEGER NOT NULL,
    uid TEXT NOT NULL UNIQUE,
    operation TEXT NOT NULL,
    state TEXT NOT NULL,
    reason TEXT,
    labels TEXT NOT NULL,
    spec TEXT NOT NULL,
    parts TEXT NOT NULL,
    layers TEXT NOT NULL,
    host TEXT NOT NULL,
    ended_at INTEGER,
    continues INTEGER,
    continued_as INTEGER
) STRICT;
CREATE UNIQUE INDEX sandboxes_by_id ON sandboxes (account, generation, slot);
-- A slot holds one generation that has not ended, and never two.
CREATE UNIQUE INDEX sandboxes_living ON sandboxes (account, slot) WHERE ended_at IS NULL;
CREATE INDEX sandboxes_living_by_time ON sandboxes (account, generation, slot) WHERE ended_at IS NULL;
CREATE INDEX sandboxes_to_evict ON sandboxes (ended_at) WHERE ended_at IS NOT NULL;

CREATE TABLE snapshots (
    number INTEGER PRIMARY KEY,
    account TEXT NOT NULL,
    id TEXT NOT NULL UNIQUE,
    name TEXT,
    operation TEXT NOT NULL,
    mode TEXT NOT NULL,
    state TEXT NOT NULL,
    source TEXT,
    created_at INTEGER NOT NULL,
    ended_at INTEGER,
    labels TEXT NOT NULL,
    doc TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX snapshots_named ON snapshots (account, name)
    WHERE name IS NOT NULL AND state IN ('capturing', 'verifying', 'active');
CREATE INDEX snapshots_by_time ON snapshots (account, created_at, id);
CREATE INDEX snapshots_kept ON snapshots (account, created_at, id) WHERE ended_at IS NULL;
CREATE INDEX snapshots_by_source ON snapshots (account, source, created_at, id) WHERE source IS NOT NULL;
CREATE INDEX snapshots_to_evict ON snapshots (ended_at) WHERE ended_at IS NOT NULL;

CREATE TABLE executions (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    account TEXT NOT NULL,
    sandbox TEXT NOT NULL,
    state TEXT NOT NULL,
    started_at INTEGER NOT NULL,
    doc TEXT NOT NULL,
    -- The keyed operation that started it.
    operation INTEGER
) STRICT;
CREATE INDEX executions_by_sandbox ON executions (sandbox, started_at, id);

CREATE TABLE previews (
    id TEXT PRIMARY KEY,
    account TEXT NOT NULL,
    sandbox TEXT NOT NULL,
    token_hash BLOB NOT NULL UNIQUE,
    created_at INTEGER NOT NULL,
    expires_at INTEGER,
    revoked_at INTEGER,
    dead_at INTEGER GENERATED ALWAYS AS (
        CASE WHEN revoked_at IS NULL THEN expires_at
             WHEN expires_at IS NULL THEN revoked_at
             ELSE min(expires_at, revoked_at) END) VIRTUAL,
    doc TEXT NOT NULL
) STRICT;
CREATE INDEX previews_by_time ON previews (account, created_at, id);
CREATE INDEX previews_by_sandbox ON previews (sandbox, created_at, id);
CREATE INDEX previews_to_evict ON previews (dead_at) WHERE dead_at IS NOT NULL;

CREATE TABLE access_keys (
    id TEXT PRIMARY KEY,
    account TEXT NOT NULL,
    hash BLOB NOT NULL UNIQUE,
    scopes TEXT NOT NULL,
    narrowing TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER,
    revoked_at INTEGER,
    dead_at INTEGER GENERATED ALWAYS AS (
        CASE WHEN revoked_at IS NULL THEN expires_at
             WHEN expires_at IS NULL THEN revoked_at
             ELSE min(expires_at, revoked_at) END) VIRTUAL,
    doc TEXT NOT NULL
) STRICT;
CREATE INDEX access_keys_by_time ON access_keys (account, created_at, id);
CREATE INDEX access_keys_to_evict ON access_keys (dead_at) WHERE dead_at IS NOT NULL;

CREATE TABLE receipts (
    id TEXT PRIMARY KEY,
    account TEXT NOT NULL,
    kind TEXT NOT NULL,
    sandbox TEXT NOT NULL,
    operation TEXT,
    created_at INTEGER NOT NULL,
    doc TEXT NOT NULL
) STRICT;
CREATE INDEX receipts_by_sandbox ON receipts (account, sandbox, created_at, id);
CREATE INDEX receipts_by_time ON receipts (account, created_at, id);
CREATE INDEX receipts_to_evict ON receipts (created_at);

CREATE TABLE events (
    account TEXT NOT NULL,
    sequence INTEGER NOT NULL,
    at INTEGER NOT NULL,
    kind TEXT NOT NULL,
    doc TEXT NOT NULL,
    PRIMARY KEY (account, sequence)
) STRICT, WITHOUT ROWID;

-- What is held now, and for what.
CREATE TABLE holds (
    holder TEXT NOT NULL,
    name TEXT NOT NULL,
    account TEXT NOT NULL,
    amount INTEGER NOT NULL,
    PRIMARY KEY (holder, name)
) STRICT, WITHOUT ROWID;
CREATE INDEX holds_by_account ON holds (account, name, holder);

-- Sums: of what is held now (period ''), and of what only adds up.
CREATE TABLE used (
    account TEXT NOT NULL,
    name TEXT NOT NULL,
    period TEXT NOT NULL,
    amount INTEGER NOT NULL,
    PRIMARY KEY (account, name, period)
) STRICT, WITHOUT ROWID;
