-- Webhooks: where events are delivered to. How far that has come is in the document.

CREATE TABLE webhooks (
    id TEXT PRIMARY KEY,
    account TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    doc TEXT NOT NULL
) STRICT;
CREATE INDEX webhooks_by_time ON webhooks (account, created_at, id);
