//! States that an operator should not see often: an ended session, a read token, a lost connection.

use super::{RULES, SignedIn};
use serde_json::json;

#[tokio::test]
async fn an_ended_session_and_a_lost_connection_lose_no_draft() {
    let page = SignedIn::start().await;
    page.edit_rules().await;
    let chrome = &page.chrome;
    let draft = RULES.replace("1000/s", "900/s");
    chrome.fill("textarea", &draft).await;
    chrome.fill("[aria-label=Message]", "kept").await;
    chrome.value("void fetch('/v1/session', { method: 'DELETE' })").await;
    chrome.wait_for_text("Your session has ended. Nothing that you wrote is lost.").await;
    assert_eq!(chrome.value("document.querySelector('#frame').hidden").await, true);
    chrome.fill("#token", "not-a-token").await;
    chrome.click("button", "Sign in").await;
    chrome.wait_for_text("This token is not valid").await;
    chrome.fill("#token", &page.token).await;
    chrome.click("button", "Sign in").await;
    chrome
        .wait("!document.querySelector('#frame').hidden && !document.querySelector('#publish').disabled")
        .await;
    assert_eq!(chrome.value("document.querySelector('textarea').value").await, draft);
    assert_eq!(chrome.value("document.querySelector('[aria-label=Message]').value").await, "kept");

    page.server.signal("KILL");
    chrome.wait_for_text("Connection lost.").await;
    chrome.wait_for_text("No connection to the control plane.").await;
    chrome.wait("document.querySelector('#connection').textContent === 'disconnected'").await;
    assert_eq!(chrome.value("document.querySelector('textarea').value").await, draft);
}

#[tokio::test]
async fn a_read_token_sees_why_it_changes_nothing() {
    let page = SignedIn::start().await;
    let chrome = &page.chrome;
    let created = page.call(
        "POST",
        "/v1/tokens",
        "Content-Type: application/json\r\n",
        r#"{"name":"viewer","role":"read"}"#,
    );
    let token = created.json()["token"].as_str().unwrap_or_else(|| panic!("{}", created.body)).to_owned();
    chrome.click("#sign-out", "").await;
    chrome.wait("document.querySelector('#token')").await;
    chrome.sign_in(page.admin, &token).await;
    chrome.wait_for_text("read only").await;
    page.edit_rules().await;
    chrome.wait_for_text("This token may only read.").await;
    assert_eq!(chrome.value("document.querySelector('textarea').readOnly").await, true);
    chrome.go("#/keys/user/ann").await;
    chrome.wait("document.querySelector('[data-act=reset]')?.disabled").await;
    assert_ne!(chrome.value("document.querySelector('[data-act=reset]').title").await, json!(""));
    chrome.go("#/nodes").await;
    chrome.wait("document.querySelector('.card .seg button')?.disabled").await;
    page.assert_clean_console();
}
