"""Two levels of classes: CLINC150's domains, Omniglot's alphabets, and groups of WHU-RS19."""

from __future__ import annotations

DOMAINS = {
    "banking": "freeze_account routing pin_change bill_due pay_bill account_blocked interest_rate "
    "min_payment bill_balance transfer order_checks balance spending_history transactions "
    "report_fraud",
    "credit cards": "replacement_card_duration expiration_date damaged_card improve_credit_score "
    "report_lost_card card_declined credit_limit_change apr redeem_rewards credit_limit "
    "rewards_balance application_status credit_score new_card international_fees",
    "kitchen": "food_last confirm_reservation how_busy ingredients_list calories nutrition_info "
    "recipe restaurant_reviews restaurant_reservation meal_suggestion restaurant_suggestion "
    "cancel_reservation ingredient_substitution cook_time accept_reservations",
    "home": "what_song play_music todo_list_update reminder reminder_update calendar_update "
    "order_status update_playlist shopping_list calendar next_song order todo_list "
    "shopping_list_update smart_home",
    "commute": "current_location oil_change_when oil_change_how uber traffic tire_pressure "
    "schedule_maintenance gas mpg distance directions last_maintenance gas_type tire_change "
    "jump_start",
    "travel": "plug_type travel_notification translate flight_status international_visa timezone "
    "exchange_rate travel_suggestion travel_alert vaccines lost_luggage book_flight book_hotel "
    "carry_on car_rental",
    "utility": "weather alarm date find_phone share_location timer make_call calculator definition "
    "measurement_conversion flip_coin spelling time roll_dice text",
    "work": "pto_request_status next_holiday insurance_change insurance meeting_schedule payday "
    "taxes income rollover_401k pto_balance pto_request w2 schedule_meeting direct_deposit "
    "pto_used",
    "small talk": "who_made_you meaning_of_life who_do_you_work_for do_you_have_pets "
    "what_are_your_hobbies fun_fact what_is_your_name where_are_you_from goodbye thank_you "
    "greeting tell_joke are_you_a_bot how_old_are_you what_can_i_ask_you",
    "meta": "change_speed user_name whisper_mode yes change_volume no change_language repeat "
    "change_accent cancel sync_device change_user_name change_ai_name reset_settings maybe",
}
GROUNDS = {
    "transport": "Airport Bridge Parking Port railwayStation Viaduct",
    "water": "Beach Pond River",
    "land": "Desert Farmland Forest Meadow Mountain",
    "town": "Commercial footballField Industrial Park Residential",
}
# Characters of the 20 alphabets of Omniglot's evaluation set, in the order of their numbers.
ALPHABETS = (20, 26, 26, 26, 26, 26, 45, 45, 41, 26, 47, 40, 30, 45, 46, 28, 23, 25, 42, 26)
FIRST = 965  # number of the first of these characters


def parents_of(classes: list[str]) -> dict[str, str]:
    """The group of each class, of the three banks that have one."""
    if classes[0].startswith("char"):
        owners = [f"alphabet {i}" for i, count in enumerate(ALPHABETS) for _ in range(count)]
        return {name: owners[int(name[4:]) - FIRST] for name in classes}
    groups = DOMAINS if "balance" in classes else GROUNDS
    owner = {name.lower(): group for group, names in groups.items() for name in names.split()}
    return {name: owner["".join(name.lower().split())] for name in classes}
