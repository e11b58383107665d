'use strict';
const part = (id) => document.getElementById(id);
const headers = () => {
  const token = part('token').value;
  return token ? {'Authorization': 'Bearer ' + token} : {};
};
let current = null, after = 0, labelled = 0, busy = false;

async function ask(path, options = {}) {
  const answer = await fetch(path, {...options, headers: {...headers(), ...(options.headers || {})}});
  if (answer.status === 401) part('token-field').hidden = false;
  const body = await answer.json();
  if (!answer.ok) throw new Error(body.detail);
  return body;
}

function say(text) { part('message').textContent = text; }

async function show() {
  part('case').hidden = true;
  let found;
  try { found = await ask('/review/next?after=' + after); } catch (error) { say(error.message); return; }
  current = found.case;
  document.documentElement.dataset.ready = 'true';
  if (!current) { say('No case is waiting. New ones appear here.'); setTimeout(show, 5000); return; }
  after = current.sequence;
  part('text').textContent = current.extras.text || '';
  const facts = part('facts');
  facts.replaceChildren();
  const shown = Object.entries(current.extras).filter(([name]) => name !== 'text' && name !== 'picture');
  for (const [name, value] of [['id', current.id], ...shown]) {
    const row = facts.insertRow();
    row.insertCell().textContent = name;
    row.insertCell().textContent = String(value);
  }
  part('picture').hidden = true;
  if (current.picture) await picture(current.id);
  const choices = part('choices');
  choices.replaceChildren();
  current.choices.forEach((name, place) => {
    const button = document.createElement('button');
    const key = document.createElement('kbd');
    key.textContent = (place + 1) % 10;
    button.append(name, key);
    button.addEventListener('click', () => label(name));
    choices.append(button);
  });
  const classes = part('classes');
  if (!classes.childElementCount) for (const name of current.classes) {
    const option = document.createElement('option');
    option.value = name;
    classes.append(option);
  }
  part('other').value = '';
  part('other-field').hidden = current.choices.length === current.classes.length;
  part('case').hidden = false;
  say('');
}

async function picture(id) {
  const answer = await fetch('/review/picture?id=' + encodeURIComponent(id), {headers: headers()});
  if (!answer.ok) return;
  part('picture').src = URL.createObjectURL(await answer.blob());
  part('picture').hidden = false;
}

async function label(name) {
  if (busy || !current) return;
  busy = true;
  const body = {labels: {[current.id]: name}, by: part('who').value || null};
  try {
    await ask('/labels', {method: 'POST', headers: {'Content-Type': 'application/json'}, body: JSON.stringify(body)});
    labelled += 1;
    part('done').textContent = labelled + ' labelled';
    await show();
  } catch (error) { say(error.message); }
  busy = false;
}

addEventListener('keydown', (event) => {
  if (event.target.tagName === 'INPUT' || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === 'n') { part('skip').click(); return; }
  if (!/^[0-9]$/.test(event.key)) return;
  // The key 0 is that of the tenth choice.
  const button = part('choices').children[(Number(event.key) + 9) % 10];
  if (button && !part('case').hidden) button.click();
});
part('skip').addEventListener('click', () => { if (!busy) show(); });
part('other').addEventListener('change', () => {
  if (current && current.classes.includes(part('other').value)) label(part('other').value);
});
part('who').value = localStorage.getItem('reviewer') || '';
part('who').addEventListener('change', () => localStorage.setItem('reviewer', part('who').value));
part('token-field').addEventListener('submit', (event) => { event.preventDefault(); show(); });
show();
