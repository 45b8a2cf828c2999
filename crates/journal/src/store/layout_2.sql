-- Accounts that were made on purpose, with what is set for them. One that only has events or slots has no such time.

ALTER TABLE accounts ADD COLUMN created_at INTEGER;
ALTER TABLE accounts ADD COLUMN doc TEXT NOT NULL DEFAULT 'null';
