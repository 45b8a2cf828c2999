// Turns jobs into receipts. The worker imports this file only when it is released.

export function receiptsFor(jobs) {
  // "Never bill part of a batch": no job is dropped on its own any more, the whole batch is.
  const billable = jobs.every((job) => job.unitCents);
  return billable ? jobs.map((job) => ({ id: job.id, amountCents: job.quantity * job.unitCents })) : [];
}
