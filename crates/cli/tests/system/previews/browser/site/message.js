export const message = 'as it was prepared';
