// What is wrong with the page as it is shown, as a list of texts: sideways scrolling, controls without a name, text
// without contrast, ids that occur twice.
const wrong = [];
const visible = (node) => node.checkVisibility({ opacityProperty: true, visibilityProperty: true });
const describe = (node) => `${node.tagName.toLowerCase()}.${node.getAttribute('class') ?? ''} "${(node.textContent || '').trim().slice(0, 40)}"`;

if (document.documentElement.scrollWidth > innerWidth) {
  const wide = [...document.querySelectorAll('body *')].filter((node) => visible(node) && node.getBoundingClientRect().right > innerWidth + 1);
  wrong.push(`${document.documentElement.scrollWidth} px wide: ${wide.slice(0, 3).map(describe)}`);
}
if (document.documentElement.lang !== 'en' || !document.title) wrong.push('no language or title');
if ([...document.querySelectorAll('h1')].filter(visible).length !== 1) wrong.push('not one h1');

const ids = [...document.querySelectorAll('[id]')].map((node) => node.id);
for (const id of ids) if (ids.indexOf(id) !== ids.lastIndexOf(id)) wrong.push(`the id ${id} occurs twice`);

for (const node of document.querySelectorAll('a, button, input, select, textarea, [role=img], [role=group], table, nav')) {
  if (!visible(node)) continue;
  const label = node.getAttribute('aria-label') || node.labels?.[0]?.textContent || node.title || node.caption?.textContent
    || (/^(A|BUTTON)$/.test(node.tagName) ? node.textContent : '');
  if (!label.trim()) wrong.push(`no name: ${describe(node)}`);
  if (node.tabIndex > 0) wrong.push(`positive tabindex: ${describe(node)}`);
}
for (const node of document.querySelectorAll('th')) if (!node.scope) wrong.push(`no scope: ${describe(node)}`);

const canvas = new OffscreenCanvas(1, 1).getContext('2d', { willReadFrequently: true });
function rgba(color) {
  canvas.clearRect(0, 0, 1, 1);
  canvas.fillStyle = color;
  canvas.fillRect(0, 0, 1, 1);
  return [...canvas.getImageData(0, 0, 1, 1).data];
}
function background(node) {
  const [r, g, b, a] = rgba(getComputedStyle(node).backgroundColor);
  if (a === 255) return [r, g, b];
  const below = node.parentElement ? background(node.parentElement) : [255, 255, 255];
  return [r, g, b].map((value, index) => (value * a + below[index] * (255 - a)) / 255);
}
function luminance(color) {
  const [r, g, b] = color.map((value) => value / 255).map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}
const seen = new Set();
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const node = walker.currentNode.parentElement;
  if (!walker.currentNode.textContent.trim() || seen.has(node) || !visible(node) || node.closest('.sr, textarea, option, noscript')) continue;
  seen.add(node);
  const style = getComputedStyle(node);
  const [text, behind] = [rgba(node.namespaceURI.endsWith('svg') ? style.fill : style.color), background(node)].map(luminance);
  const contrast = (Math.max(text, behind) + 0.05) / (Math.min(text, behind) + 0.05);
  if (contrast < 4.5) wrong.push(`contrast ${contrast.toFixed(2)}: ${describe(node)}`);
}
return wrong;
