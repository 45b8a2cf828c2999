import './style.css';
import { message } from './message.js';
import picture from './picture.svg';

const show = (text) => {
  document.querySelector('#message').textContent = text;
};

show(message);
document.querySelector('#picture').src = picture;
// Another one after each load, so that a reload can be told from a change in place.
window.born = Math.random();
window.listen = () => {
  window.heard = [];
  window.source = new EventSource('/events');
  window.source.onmessage = (event) => window.heard.push(Number(event.data));
};

if (import.meta.hot) import.meta.hot.accept('./message.js', (changed) => show(changed.message));
