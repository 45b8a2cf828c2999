// Turns jobs into receipts. The worker imports this file only when it is released.

export function receiptsFor(jobs) {
  const priced = jobs.filter((job) => job.unitCents);
  return priced.map((job) => ({ id: job.id, amountCents: job.quantity * job.unitCents }));
}
