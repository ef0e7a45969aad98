//! Rules: the editor, publishing, history, and two operators at once.

use super::{MARKUP, RULES, SignedIn};
use fantoccini::key::Key;
use serde_json::json;

#[tokio::test]
async fn a_published_rule_limits_the_next_request_until_it_is_rolled_back() {
    let page = SignedIn::start().await;
    assert_eq!(page.check("ann"), 200);
    page.edit_rules().await;
    let chrome = &page.chrome;
    chrome.wait_for_text("1 passed").await;
    assert_eq!(chrome.value("document.querySelector('#why-not').textContent").await, "No changes yet.");

    // A test that fails beside the rules keeps them from being published.
    chrome.fill("textarea", &RULES.replace("3/h", "1/h")).await;
    chrome.wait_for_text("1 test failed: three orders an hour.").await;
    assert_eq!(chrome.value("document.querySelector('#publish').disabled").await, true);

    let stricter = RULES.replace("3/h", "1/h").replace("pass: 3", "pass: 1");
    chrome.fill("textarea", &stricter).await;
    chrome.wait_for_text("Say what changes, and why.").await;
    page.publish_draft("one order an hour – für Tests").await;
    chrome.wait_for_text("Revision 2 is published.").await;
    page.wait_for_revision(2);
    assert_eq!([page.check("bob"), page.check("bob")], [200, 429]);

    chrome.go("#/rules/history").await;
    chrome.wait_for_text("one order an hour – für Tests").await;
    chrome.click("button[aria-label='What revision 2 changed']", "Diff").await;
    chrome
        .wait("[...document.querySelectorAll('.diff .del')].some((line) => line.textContent.includes('3/h'))")
        .await;
    chrome.click("button", "Roll back").await;
    chrome.wait("document.querySelector('dialog .main').disabled").await;
    chrome.fill("dialog input", "r1").await;
    chrome.click("dialog button", "Roll back").await;
    chrome.wait_for_text("Revision 3 is published: the text of revision 1.").await;
    page.wait_for_revision(3);
    assert_eq!([(); 4].map(|()| page.check("carol")), [200, 200, 200, 429], "three an hour again");
    chrome.wait("document.querySelector('textarea')?.value.includes('3/h')").await;
    page.assert_clean_console();
}

#[tokio::test]
async fn an_error_is_marked_at_its_line_and_column() {
    let page = SignedIn::start().await;
    page.edit_rules().await;
    let chrome = &page.chrome;
    chrome.fill("textarea", &RULES.replace("1000/s", "0/s")).await;
    chrome.wait("document.querySelector('.ln.err')").await;
    assert_eq!(chrome.value("document.querySelector('.ln.err').dataset.n").await, "8");
    assert_eq!(chrome.value("document.querySelector('.ln.err u').textContent").await, "0/s");
    let shown = chrome.value("document.querySelector('.problem').innerText").await;
    let shown = shown.as_str().unwrap();
    assert!(shown.starts_with("8:12") && shown.contains("hint:"), "{shown}");
    let reason = chrome.value("document.querySelector('#why-not').textContent").await;
    assert_eq!(reason, "1 error: line 8, column 12.");
    assert_eq!(chrome.value("document.querySelector('#publish').disabled").await, true);
    chrome.click(".problem", "8:12").await;
    let caret = "const { value, selectionStart } = document.querySelector('textarea'); return value.slice(selectionStart, selectionStart + 3)";
    assert_eq!(chrome.page.execute(caret, Vec::new()).await.unwrap(), json!("0/s"));

    // The draft outlives a reload, and what is in force is untouched.
    chrome.page.refresh().await.unwrap();
    chrome.wait("document.querySelector('textarea')?.value.includes('0/s')").await;
    chrome.wait("document.querySelector('.ln.err')").await;
    assert_eq!(page.check("ann"), 200);
    page.assert_clean_console();
}

#[tokio::test]
async fn the_second_of_two_operators_is_told_and_loses_nothing() {
    let page = SignedIn::start().await;
    page.edit_rules().await;
    let chrome = &page.chrome;
    let mine = RULES.replace("1000/s", "900/s");
    chrome.fill("textarea", &mine).await;
    chrome.fill("[aria-label=Message]", "fewer per address").await;
    chrome.wait("!document.querySelector('#publish').disabled").await;

    let theirs = RULES.replace("limit: 3/h", "limit: 4/h").replace("send: 4, pass: 3", "send: 5, pass: 4");
    page.publish(&theirs, 1, "one more order");
    chrome.wait_for_text("was published by").await;
    chrome.wait_for_text("“one more order”").await;
    assert_eq!(chrome.value("document.querySelector('#publish').disabled").await, true);
    assert_eq!(chrome.value("document.querySelector('textarea').value").await, mine, "the draft is kept");
    chrome.click("#conflict button", "Merge both").await;
    let both = theirs.replace("1000/s", "900/s");
    chrome.wait(&format!("document.querySelector('textarea').value === {}", json!(both))).await;
    chrome.click("#publish", "Publish").await;
    chrome.wait_for_text("Revision 3 is published.").await;
    let reply = page.call("GET", "/v1/rules", "Accept: application/yaml\r\n", "");
    assert_eq!(reply.body, both);

    // Both change the same line: the second chooses.
    chrome.fill("textarea", &both.replace("900/s", "800/s")).await;
    page.publish(&both.replace("900/s", "700/s"), 3, "much fewer");
    chrome.wait_for_text("Both change the same lines").await;
    chrome.click("#conflict button", "Keep my text").await;
    page.publish_draft("not that few").await;
    chrome.wait_for_text("Revision 5 is published.").await;
    page.assert_clean_console();
}

/// From the login to a published rule without a pointer.
#[tokio::test]
async fn rules_are_published_by_keyboard_alone() {
    let page = SignedIn::start().await;
    let chrome = &page.chrome;
    chrome.keys("?").await;
    chrome.wait("document.querySelector('dialog[open] kbd')").await;
    chrome.key(Key::Escape).await;
    chrome.wait("!document.querySelector('dialog')").await;
    for (keys, title) in
        [("gk", "Keys"), ("gt", "Top"), ("gn", "Nodes"), ("ga", "Audit"), ("go", "Overview"), ("gr", "Rules")]
    {
        // The field of Keys and Audit takes what is typed, so leave it first.
        chrome.value("document.activeElement.blur()").await;
        chrome.keys(keys).await;
        chrome.wait(&format!("document.title.startsWith('{title}')")).await;
    }
    chrome.wait("document.querySelector('textarea')?.value").await;
    chrome.keys("e").await;
    chrome.wait("document.activeElement.tagName === 'TEXTAREA'").await;
    let (ctrl, end) = (char::from(Key::Control), char::from(Key::Home));
    chrome.keys(&format!("{ctrl}{end}")).await;
    chrome.keys("# by keyboard\n").await;
    chrome.wait("document.querySelector('textarea').value.startsWith('# by keyboard\\nrules:')").await;
    // Tab indents; after Escape it leaves the editor.
    chrome.key(Key::Tab).await;
    chrome.wait("document.querySelector('textarea').value.startsWith('# by keyboard\\n  rules:')").await;
    chrome.keys(&format!("{}{}", char::from(Key::Backspace), char::from(Key::Backspace))).await;
    chrome.key(Key::Escape).await;
    chrome.key(Key::Tab).await;
    chrome.wait("document.activeElement.tagName !== 'TEXTAREA'").await;
    assert_eq!(
        chrome.value("getComputedStyle(document.activeElement).outlineStyle").await,
        "solid",
        "focus is visible"
    );
    chrome.value("document.activeElement.blur()").await;
    chrome.keys("e").await;
    chrome.keys(&format!("{ctrl}{}", char::from(Key::Enter))).await;
    chrome.wait("document.activeElement.ariaLabel === 'Message'").await;
    chrome.keys("a comment").await;
    chrome.wait("!document.querySelector('#publish').disabled").await;
    chrome.key(Key::Enter).await;
    chrome.wait_for_text("Revision 2 is published.").await;
    page.assert_clean_console();
}

#[tokio::test]
async fn markup_in_rules_and_messages_is_shown_as_text() {
    let rules = RULES.replace("three orders an hour", MARKUP);
    let page = SignedIn::with(&rules).await;
    let chrome = &page.chrome;
    let id = "<svg/onload=document.title=`broken`>";
    let changed = rules.replace("id: orders", &format!("id: \"{id}\""));
    let headers = format!("Content-Type: application/yaml\r\nIf-Match: \"1\"\r\nX-Message: {MARKUP}\r\n");
    let reply = page.call("PUT", "/v1/rules", &headers, &changed);
    let known = if reply.status == 200 { id } else { "orders" };
    if reply.status != 200 {
        // Ids with such characters are refused; the message of the refusal quotes them.
        page.publish(&rules.replace("3/h", "2/h").replace("pass: 3", "pass: 2"), 1, MARKUP);
    }
    page.edit_rules().await;
    chrome.wait(&format!("document.querySelector('.tests').innerText.includes({})", json!(MARKUP))).await;
    chrome.fill("textarea", &changed.replace("limit: 3/h", &format!("limit: \"{MARKUP}\""))).await;
    chrome.wait("document.querySelector('.problem')").await;
    chrome.go("#/rules/history").await;
    chrome.wait_for_text(MARKUP).await;
    chrome.go("#/audit").await;
    chrome.wait_for_text(MARKUP).await;
    assert_eq!(page.check("ann"), 200);
    chrome.go("#/overview").await;
    chrome.wait(&format!("document.querySelector('.shares')?.innerText.includes({})", json!(known))).await;
    chrome
        .go(&format!("#/keys/user/{}", "%3Cimg%20src%3Dx%20onerror%3Ddocument.title%3D%60broken%60%3E"))
        .await;
    chrome
        .wait(&format!("document.querySelector('main .card code')?.textContent === {}", json!(MARKUP)))
        .await;
    assert_eq!(chrome.value("document.querySelector('img, #main svg[onload]')").await, json!(null));
    assert_ne!(chrome.value("document.title").await, "broken");
    page.assert_clean_console();
}
